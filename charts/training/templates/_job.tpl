{{/*
A training job without its pods: the Job, its Service, its rules and its notes. A chart defines its own part in
CHART.jobSpec and CHART.immutable (_job.tpl), and in CHART.rules (validate.yaml).
*/}}

{{/*
A training Job.
Arguments: root, component, name, count (of pods), spec (YAML: the fields that do not change in place), parts (see
common.jobMetadata), fields (YAML, optional: further fields that change in place), least, group and autoscale (see
common.jobMetadata).
*/}}
{{- define "training.job" -}}
{{- $root := required "training.job needs root" .root -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "common.jobMetadata" . | nindent 2 }}
spec:
  completions: {{ required "training.job needs count" .count | int64 }}
  parallelism: {{ int64 .count }}
  {{- .fields | default "" | nindent 2 }}
  {{- include "common.jobLimits" (dict "root" $root) | nindent 2 }}
  {{- required "training.job needs spec" .spec | nindent 2 }}
{{- end }}

{{/*
The podFailurePolicy of a training Job.
Arguments: root, containers (list of names), codes (list of exit codes of these containers after which no restart helps),
worker (as for training.pod).
*/}}
{{- define "training.podFailurePolicy" -}}
{{- $codes := required "training.podFailurePolicy needs codes" .codes -}}
rules:
  # A pod that a drain, a preemption or a lost node ends does not count as failed.
  - action: Ignore
    onPodConditions:
      - {type: DisruptionTarget, status: "True"}
  {{- range required "training.podFailurePolicy needs containers" .containers }}
  - action: FailJob
    onExitCodes: {containerName: {{ . | quote }}, operator: In, values: {{ toJson $codes }}}
  {{- end }}
  {{- if include "training.devices" . }}
  - action: FailJob
    onExitCodes: {containerName: devices, operator: In, values: [78]}
  {{- end }}
  {{- include "training.datasetFailures" (dict "root" .root) | nindent 2 }}
{{- end }}

{{/*
The headless Service that gives pods their host names, also while they are not Ready.
Arguments: root, component, name.
*/}}
{{- define "training.podService" -}}
{{- $root := required "training.podService needs root" .root -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ required "training.podService needs name" .name | quote }}
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
Arguments: root (with the values of the workers' pods), worker (see training.facts), reserved (see
training.rules.env), taken (list of the paths that the chart mounts itself), ports (list of the container ports of its own; optional), hosts (list of the longest host names), names
(list of the Jobs that this run can have), jobs (list of {apiVersion, kind, name, digests}: the jobs of this run), least and
scales (see training.rules.queue), starts (see training.rules.program; optional), pods (list of the specs of its pods).
*/}}
{{- define "training.rules.job" -}}
{{- $root := required "training.rules.job needs root" .root }}
{{- $v := $root.Values }}
{{ include "training.rules.worker" (dict "root" $root "worker" .worker) }}
{{ include "training.rules.image" (dict "root" $root) }}
{{ include "training.rules.kernels" (dict "root" $root "worker" .worker) }}
{{ include "training.rules.placement" (dict "root" $root) }}
{{ include "training.rules.queue" (dict "root" $root "least" .least "scales" .scales) }}
{{ include "training.rules.program" (dict "root" $root "worker" .worker "starts" .starts) }}
{{ include "training.rules.env" (dict "root" $root "reserved" .reserved) }}
{{ include "training.rules.mounts" (dict "root" $root "worker" .worker "taken" (concat (list "/dev/shm" "/bireme/runtime" "/bireme/script") .taken)) }}
{{- range .pods }}
{{ include "training.rules.volumes" (dict "root" $root "pod" .) }}
{{- end }}
{{ include "training.rules.devices" (dict "root" $root) }}
{{ include "training.rules.pod" (dict "root" $root "ports" .ports) }}
{{ include "training.rules.staging" (dict "root" $root "worker" .worker) }}
{{ include "training.rules.git" (dict "root" $root) }}
{{ include "training.rules.verify" (dict "root" $root) }}
{{- if $v.monitoring.tensorboard }}
{{ include "training.rules.tensorboard" (dict "root" $root) }}
{{- end }}
{{- range .hosts }}
{{ include "common.rules.name" (dict "name" . "limit" 63 "what" "host" "because" "host names and labels have 63") }}
{{- end }}
{{ include "training.immutable.otherRun" (dict "root" $root "names" .names) }}
{{- range .jobs }}
{{ include "common.immutable.sentence" (dict "root" $root "apiVersion" .apiVersion "kind" .kind "name" .name "digests" .digests
    "advice" (printf "set run=%d to train on in a new %s (stop this one first with --set job.suspend=true), or keep the values as they are" (add1 (int64 $v.run)) .kind)) }}
{{- end }}
{{- end }}

{{/*
The commands that NOTES.txt shows for every training job.
Arguments: root, logs (the arguments of kubectl logs), test (empty if there is none), scaling (what --set workers=N does,
empty if workers cannot change), resuming (what suspend does), unchangeable (what needs a new run), deletion (optional:
what an uninstall keeps).
*/}}
{{- define "training.notes" -}}
{{- $root := required "training.notes needs root" .root }}
{{- $ns := $root.Release.Namespace }}
{{- $name := $root.Release.Name }}
{{- $upgrade := printf "helm -n %s upgrade %s CHART --reuse-values" $ns $name -}}
Watch    kubectl -n {{ $ns }} get pods -l app.kubernetes.io/instance={{ $name }} -w
Logs     kubectl -n {{ $ns }} logs -f {{ required "training.notes needs logs" .logs }}
{{- if .test }}
Check    helm -n {{ $ns }} test {{ $name }}
{{- end }}
{{- with .scaling }}
Scale    {{ $upgrade }} --set workers=N   ({{ . }})
{{- end }}
Stop     {{ $upgrade }} --set job.suspend=true   ({{ required "training.notes needs resuming" .resuming }})
Change   {{ required "training.notes needs unchangeable" .unchangeable }} needs a new run: stop it, then upgrade with --set run={{ add1 (int64 $root.Values.run) }}
Delete   helm -n {{ $ns }} uninstall {{ $name }}{{ with .deletion }}   ({{ . }}){{ end }}
{{- if dig "tensorboard" "enabled" false $root.Values.monitoring }}
Board    kubectl -n {{ $ns }} port-forward svc/{{ include "common.fullname" (dict "root" $root) }}-tensorboard 6006
{{- end }}
{{- end }}
