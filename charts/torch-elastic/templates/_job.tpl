{{/*
The fields of the Job's spec that do not change in place. job.yaml has the others.
*/}}
{{- define "torch-elastic.jobSpec" -}}
{{- include "common.once" (dict "root" . "template" "torch-elastic.jobSpec.text" "arguments" .) }}
{{- end }}
{{- define "torch-elastic.jobSpec.text" -}}
{{- include "torch-elastic.facts" . -}}
completionMode: Indexed
backoffLimitPerIndex: {{ int64 .Values.recovery.backoffLimitPerIndex }}
podReplacementPolicy: Failed
podFailurePolicy:
  {{- include "training.podFailurePolicy" (dict "root" . "worker" .Facts.worker "containers" (list "trainer") "codes" (list 64 70 78)) | nindent 2 }}
{{- if and .Values.recovery.excludeNodeSeconds (eq .Values.rendezvous.backend "etcd") (not .Values.launch.command) }}
    # A pod on an excluded node. It does not count, but the pauses before the next one grow.
    - action: Ignore
      onExitCodes: {containerName: trainer, operator: In, values: [69]}
{{- end }}
{{- if and (not .Values.launch.command) (include "training.hasRuntime" (dict "root" .)) }}
successPolicy:
  rules:
    # A worker exits with 0 only if the run succeeded, so one such exit is enough. Without our entry point it says nothing of others.
    - succeededCount: 1
{{- end }}
template:
  {{- include "torch-elastic.pod" . | nindent 2 }}
{{- end }}

{{- /* Keeps these fields in the root as Facts.spec, for templates that read some of them. Prints nothing. */}}
{{- define "torch-elastic.spec" -}}
{{- include "torch-elastic.facts" . }}
{{- if not (hasKey .Facts "spec") }}{{ $_ := set .Facts "spec" (include "torch-elastic.jobSpec" . | fromYaml) }}{{ end }}
{{- end }}

{{- /* Others read Facts.autoscale. */}}
{{- define "torch-elastic.autoscale" -}}
{{- include "training.autoscale" (dict "root" . "least" .Values.elastic.minWorkers "most" .Values.elastic.maxWorkers "step" .Values.elastic.workersPerUnit "spares" .Values.elastic.spares) }}
{{- end }}

{{- define "torch-elastic.immutable" -}}
{{- include "common.once" (dict "root" . "template" "torch-elastic.immutable.text" "arguments" .) }}
{{- end }}
{{- define "torch-elastic.immutable.text" -}}
{{- include "torch-elastic.spec" . }}
{{- include "common.immutable.job" (dict "spec" .Facts.spec) }}
{{- end }}
