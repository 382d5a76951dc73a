{{/*
A training job without its pods: the Job, its Service, its rules and its notes. A chart defines its own part in
CHART.jobSpec and CHART.immutableParts (_job.tpl), and in CHART.rules (validate.yaml).
*/}}

{{/*
A training Job.
Arguments: root, component, name, count (of pods), spec (YAML: the fields that do not change in place), parts (see
common.jobMetadata), fields (YAML, optional: further fields that change in place), least, group and autoscale (see
common.jobMetadata).
*/}}
{{- define "common.trainingJob" -}}
{{- $root := required "common.trainingJob needs root" .root -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "common.jobMetadata" . | nindent 2 }}
spec:
  completions: {{ required "common.trainingJob needs count" .count | int64 }}
  parallelism: {{ int64 .count }}
  {{- .fields | default "" | nindent 2 }}
  {{- include "common.jobLimits" (dict "root" $root) | nindent 2 }}
  {{- required "common.trainingJob needs spec" .spec | nindent 2 }}
{{- end }}

{{/*
The metadata of a Job or MPIJob.
Arguments: root (values queueName, jobLabels, kueue), component, name, parts (see _immutable.tpl), least (optional: the
pods with which it can start), group (optional: the number of pods that Kueue admits together, see common.kueue.group),
autoscale (optional: the result of common.autoscale).
*/}}
{{- define "common.jobMetadata" -}}
{{- $root := required "common.jobMetadata needs root" .root -}}
name: {{ required "common.jobMetadata needs name" .name | quote }}
namespace: {{ $root.Release.Namespace | quote }}
labels:
  {{- include "common.labels" (dict "root" $root "component" .component) | nindent 2 }}
  {{- if not .group }}
  {{- include "common.kueue.labels" (dict "root" $root) | nindent 2 }}
  {{- end }}
  {{- if .autoscale }}
  bireme/autoscale: "true"
  {{- end }}
  {{- with $root.Values.jobLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- with $root.Values.jobAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  bireme/immutable: {{ include "common.immutable.digests" (dict "parts" .parts) | quote }}
  {{- with .autoscale }}
  bireme/autoscale: {{ toJson . | quote }}
  {{- end }}
  {{- $admission := ($root.Values.kueue | default dict).admission }}
  {{- if eq $admission "elastic" }}
  kueue.x-k8s.io/elastic-job: "true"
  {{- else if eq $admission "partial" }}
  kueue.x-k8s.io/job-min-parallelism: {{ required "common.jobMetadata needs least" .least | quote }}
  kueue.x-k8s.io/job-completions-equal-parallelism: "true"
  {{- end }}
{{- end }}

{{/*
The fields that suspend, stop and delete a job. They change in place.
Arguments: root (values suspend, ttlSecondsAfterFinished, activeDeadlineSeconds).
*/}}
{{- define "common.jobLimits" -}}
{{- $v := (required "common.jobLimits needs root" .root).Values }}
{{- if not (kindIs "invalid" $v.suspend) }}
suspend: {{ $v.suspend }}
{{- end }}
{{- range $key := list "ttlSecondsAfterFinished" "activeDeadlineSeconds" }}
{{- if not (kindIs "invalid" (index $v $key)) }}
{{ $key }}: {{ index $v $key | int64 }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The podFailurePolicy of a training Job.
Arguments: root, containers (list of names), codes (list of exit codes of these containers after which no restart helps),
worker (as for common.trainingPod).
*/}}
{{- define "common.podFailurePolicy" -}}
{{- $codes := required "common.podFailurePolicy needs codes" .codes -}}
rules:
  # A pod that a drain, a preemption or a lost node ends does not count as failed.
  - action: Ignore
    onPodConditions:
      - {type: DisruptionTarget, status: "True"}
  {{- range required "common.podFailurePolicy needs containers" .containers }}
  - action: FailJob
    onExitCodes: {containerName: {{ . | quote }}, operator: In, values: {{ toJson $codes }}}
  {{- end }}
  {{- if include "common.devices" . }}
  - action: FailJob
    onExitCodes: {containerName: devices, operator: In, values: [78]}
  {{- end }}
  {{- include "common.datasetFailures" (dict "root" .root) | nindent 2 }}
{{- end }}

{{/*
The headless Service that gives pods their host names, also while they are not Ready.
Arguments: root, component, name.
*/}}
{{- define "common.podService" -}}
{{- $root := required "common.podService needs root" .root -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ required "common.podService needs name" .name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" .component) | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "common.selectorLabels" (dict "root" $root "component" .component) | nindent 4 }}
{{- end }}

{{/*
The rules of every training job.
Arguments: root (with the values of the workers' pods), worker (the result of common.worker), reserved (see
common.rules.env), taken (list of the paths that the chart mounts itself), ports (list of the container ports of its own; optional), hosts (list of the longest host names), names
(list of the Jobs that this run can have), jobs (list of {apiVersion, kind, name, parts}: the jobs of this run), least and
scales (see common.rules.kueue), starts (see common.rules.program; optional), pods (list of the specs of its pods).
*/}}
{{- define "common.rules.trainingJob" -}}
{{- $root := required "common.rules.trainingJob needs root" .root }}
{{- $v := $root.Values }}
{{ include "common.rules.worker" (dict "root" $root "worker" .worker) }}
{{ include "common.rules.image" (dict "root" $root) }}
{{ include "common.rules.kernels" (dict "root" $root) }}
{{ include "common.rules.placement" (dict "root" $root) }}
{{ include "common.rules.kueue" (dict "root" $root "least" .least "scales" .scales) }}
{{ include "common.rules.program" (dict "root" $root "worker" .worker "starts" .starts) }}
{{ include "common.rules.env" (dict "root" $root "reserved" .reserved) }}
{{ include "common.rules.mounts" (dict "root" $root "worker" .worker "taken" (concat (list "/dev/shm" "/bireme/runtime" "/bireme/script") .taken)) }}
{{- range .pods }}
{{ include "common.rules.volumes" (dict "root" $root "pod" .) }}
{{- end }}
{{ include "common.rules.devices" (dict "root" $root) }}
{{ include "common.rules.pod" (dict "root" $root "ports" .ports) }}
{{ include "common.rules.staging" (dict "root" $root "worker" .worker) }}
{{ include "common.rules.verify" (dict "root" $root) }}
{{- if hasKey $v "tensorboard" }}
{{ include "common.rules.tensorboard" (dict "root" $root) }}
{{- end }}
{{- range .hosts }}
{{ include "common.rules.name" (dict "name" . "limit" 63 "what" "host" "because" "host names and labels have 63") }}
{{- end }}
{{ include "common.immutable.otherRun" (dict "root" $root "names" .names) }}
{{- range .jobs }}
{{ include "common.immutable.sentence" (dict "root" $root "apiVersion" .apiVersion "kind" .kind "name" .name "parts" .parts
    "advice" (printf "set run=%d to train on in a new %s (stop this one first with --set suspend=true), or keep the values as they are" (add1 (int64 $v.run)) .kind)) }}
{{- end }}
{{- end }}

{{/*
The commands that NOTES.txt shows for every training job.
Arguments: root, logs (the arguments of kubectl logs), test (empty if there is none), scaling (what --set workers=N does,
empty if workers cannot change), resuming (what suspend does), unchangeable (what needs a new run), deletion (optional:
what an uninstall keeps).
*/}}
{{- define "common.trainingNotes" -}}
{{- $root := required "common.trainingNotes needs root" .root }}
{{- $ns := $root.Release.Namespace }}
{{- $name := $root.Release.Name }}
{{- $upgrade := printf "helm -n %s upgrade %s CHART --reuse-values" $ns $name -}}
Watch    kubectl -n {{ $ns }} get pods -l app.kubernetes.io/instance={{ $name }} -w
Logs     kubectl -n {{ $ns }} logs -f {{ required "common.trainingNotes needs logs" .logs }}
{{- if .test }}
Check    helm -n {{ $ns }} test {{ $name }}
{{- end }}
{{- with .scaling }}
Scale    {{ $upgrade }} --set workers=N   ({{ . }})
{{- end }}
Stop     {{ $upgrade }} --set suspend=true   ({{ required "common.trainingNotes needs resuming" .resuming }})
Change   {{ required "common.trainingNotes needs unchangeable" .unchangeable }} needs a new run: stop it, then upgrade with --set run={{ add1 (int64 $root.Values.run) }}
Delete   helm -n {{ $ns }} uninstall {{ $name }}{{ with .deletion }}   ({{ . }}){{ end }}
{{- if ($root.Values.tensorboard | default dict).enabled }}
Board    kubectl -n {{ $ns }} port-forward svc/{{ include "common.fullname" (dict "root" $root) }}-tensorboard 6006
{{- end }}
{{- end }}
