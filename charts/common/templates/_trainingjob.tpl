{{/*
A training job around its pods: the Job, its Service, its rules and its notes. A chart says what is its own in
CHART.jobSpec and CHART.immutableParts (_job.tpl), and in CHART.rules (validate.yaml).
*/}}

{{/*
A training Job.
Arguments: root, component, name, count (of pods), spec (YAML: the part that needs a new run to change), parts and
annotations (see common.jobMetadata), fields (YAML, optional: what else an upgrade changes in place).
*/}}
{{- define "common.trainingJob" -}}
{{- $root := required "common.trainingJob needs root" .root -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "common.jobMetadata" . | nindent 2 }}
spec:
  completions: {{ int64 .count }}
  parallelism: {{ int64 .count }}
  {{- .fields | default "" | nindent 2 }}
  {{- include "common.jobLimits" (dict "root" $root) | nindent 2 }}
  {{- required "common.trainingJob needs spec" .spec | nindent 2 }}
{{- end }}

{{/*
The metadata of a training job of any Kubernetes kind.
Arguments: root, component, name, parts (what Kubernetes will not change in place, see _immutable.tpl), annotations
(YAML, optional).
*/}}
{{- define "common.jobMetadata" -}}
{{- $root := required "common.jobMetadata needs root" .root -}}
name: {{ required "common.jobMetadata needs name" .name }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "common.labels" (dict "root" $root "component" .component) | nindent 2 }}
  {{- with $root.Values.queueName }}
  kueue.x-k8s.io/queue-name: {{ . }}
  {{- end }}
annotations:
  bireme.dev/immutable: {{ include "common.immutable.digests" (dict "parts" .parts) | quote }}
  {{- .annotations | default "" | nindent 2 }}
{{- end }}

{{/*
What the values say of how long a job runs; an upgrade changes it in place.
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
Arguments: root, containers (list of names), codes (list of the exit codes by which they say that no restart can help).
*/}}
{{- define "common.podFailurePolicy" -}}
{{- $codes := required "common.podFailurePolicy needs codes" .codes -}}
rules:
  # A drain, a preemption or a lost node is not the pod's fault.
  - action: Ignore
    onPodConditions:
      - {type: DisruptionTarget, status: "True"}
  {{- range required "common.podFailurePolicy needs containers" .containers }}
  - action: FailJob
    onExitCodes: {containerName: {{ . }}, operator: In, values: {{ toJson $codes }}}
  {{- end }}
  {{- include "common.datasetFailures" (dict "root" .root) | nindent 2 }}
{{- end }}

{{/*
The headless Service by which pods find each other. They meet by name before any of them is Ready.
Arguments: root, component, name.
*/}}
{{- define "common.podService" -}}
{{- $root := required "common.podService needs root" .root -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ required "common.podService needs name" .name }}
  namespace: {{ $root.Release.Namespace }}
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
Arguments: root (as the workers' pod sees the values), worker (the answer of common.worker), reserved (see
common.rules.env), taken (list of paths that the chart mounts beside those of common.trainingContainer), hosts (list of
the longest host names), names (list of all Jobs that this run may have), jobs (list of {apiVersion, kind, name, parts}:
those whose parts must not change).
*/}}
{{- define "common.rules.trainingJob" -}}
{{- $root := required "common.rules.trainingJob needs root" .root }}
{{- $v := $root.Values }}
{{ include "common.rules.worker" (dict "root" $root "worker" .worker) }}
{{ include "common.rules.program" (dict "root" $root) }}
{{ include "common.rules.env" (dict "root" $root "reserved" .reserved) }}
{{ include "common.rules.mounts" (dict "root" $root "taken" (concat (list "/dev/shm" "/bireme/runtime" "/bireme/script") .taken)) }}
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
What NOTES.txt says of every training job.
Arguments: root, logs (the end of a kubectl command), test (empty when there is none), scaling (what --set workers=N does,
empty when it needs a new run), resuming (what suspend=false does), unchangeable (what needs a new run), deletion
(optional: what stays).
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
