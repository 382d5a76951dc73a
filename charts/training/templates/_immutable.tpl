{{/*
A sentence if another run of this release is not stopped: two runs must not write one checkpoint.
Arguments: root, names (of this run's Jobs).
*/}}
{{- define "training.immutable.otherRun" -}}
{{- $root := required "training.immutable.otherRun needs root" .root }}
{{- $names := required "training.immutable.otherRun needs names" .names }}
{{- range (lookup "batch/v1" "Job" $root.Release.Namespace "").items }}
{{- include "training.immutable.otherJob" (dict "root" $root "job" . "names" $names "isStopped" (include "common.immutable.isStopped" (dict "job" .))) }}
{{- end }}
{{- end }}

{{/*
That sentence for one live Job or MPIJob, if it belongs to another run of the release and is not stopped.
Arguments: root, job, names (of this run's jobs), isStopped (empty if it is not).
*/}}
{{- define "training.immutable.otherJob" -}}
{{- $root := required "training.immutable.otherJob needs root" .root }}
{{- $job := (required "training.immutable.otherJob needs job" .job).metadata }}
{{- $labels := $job.labels | default dict }}
{{- $mine := and (eq (get $labels "app.kubernetes.io/instance") $root.Release.Name) (eq (get $labels "app.kubernetes.io/name") $root.Chart.Name) }}
{{- if and $mine (not (has $job.name .names)) (not .isStopped) }}
{{- printf "run %s is not stopped, and two runs must not write one checkpoint: stop it with helm upgrade --reuse-values --set job.suspend=true (its pods write a checkpoint in the grace period), wait until they are gone, then upgrade to the new run; bireme install --replace does all of it\n" $job.name }}
{{- end }}
{{- end }}
