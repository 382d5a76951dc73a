{{/*
A Job of any chart.
*/}}

{{/*
The metadata of a Job or MPIJob.
Arguments: root (values queue, job), component, name, digests (see _immutable.tpl), least (optional: the
pods with which it can start), group (optional: the number of pods that Kueue admits together, see training.queue.group),
autoscale (optional: the result of training.autoscale), advice (optional: a sentence for whoever reads the plan).
*/}}
{{- define "common.jobMetadata" -}}
{{- $root := required "common.jobMetadata needs root" .root -}}
{{- $job := $root.Values.job | default dict -}}
name: {{ required "common.jobMetadata needs name" .name | quote }}
namespace: {{ $root.Release.Namespace | quote }}
labels:
  {{- include "common.labels" (dict "root" $root "component" .component) | nindent 2 }}
  {{- if not .group }}
  {{- include "common.queueLabels" (dict "root" $root) | nindent 2 }}
  {{- end }}
  {{- if .autoscale }}
  bireme/autoscale: "true"
  {{- end }}
  {{- with $job.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- with $job.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  bireme/immutable: {{ required "common.jobMetadata needs digests" .digests | quote }}
  {{- with .advice }}
  bireme/advice: {{ trim . | quote }}
  {{- end }}
  {{- with .autoscale }}
  bireme/autoscale: {{ toJson . | quote }}
  {{- end }}
  {{- $admission := ($root.Values.queue | default dict).admission }}
  {{- if eq $admission "elastic" }}
  kueue.x-k8s.io/elastic-job: "true"
  {{- else if eq $admission "partial" }}
  kueue.x-k8s.io/job-min-parallelism: {{ required "common.jobMetadata needs least" .least | quote }}
  kueue.x-k8s.io/job-completions-equal-parallelism: "true"
  {{- end }}
{{- end }}

{{/*
The fields that suspend, stop and delete a job. They change in place.
Arguments: root (values suspend, ttlSecondsAfterFinished, activeDeadlineSeconds, in the group job if there is one).
*/}}
{{- define "common.jobLimits" -}}
{{- $all := (required "common.jobLimits needs root" .root).Values }}
{{- $v := $all.job | default $all }}
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
The labels of what Kueue admits. Nothing without a queue.
Arguments: root (values queue).
*/}}
{{- define "common.queueLabels" -}}
{{- $queue := (required "common.queueLabels needs root" .root).Values.queue | default dict }}
{{- with $queue.name -}}
kueue.x-k8s.io/queue-name: {{ . | quote }}
{{- end }}
{{- with $queue.priorityClass }}
kueue.x-k8s.io/priority-class: {{ . | quote }}
{{- end }}
{{- end }}
