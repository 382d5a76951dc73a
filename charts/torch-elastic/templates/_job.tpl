{{/*
The part of the Job's spec that Kubernetes does not change in place. job.yaml has the rest.
*/}}
{{- define "torch-elastic.jobSpec" -}}
completionMode: Indexed
backoffLimitPerIndex: {{ int64 .Values.backoffLimitPerIndex }}
podReplacementPolicy: Failed
podFailurePolicy:
  {{- include "common.podFailurePolicy" (dict "root" . "containers" (list "trainer") "codes" (list 64 78)) | nindent 2 }}
successPolicy:
  rules:
    # A worker exits 0 only when the run succeeded, so one is enough.
    - succeededCount: 1
template:
  {{- include "torch-elastic.pod" . | nindent 2 }}
{{- end }}

{{- define "torch-elastic.immutableParts" -}}
{{- include "common.immutable.jobParts" (dict "spec" (include "torch-elastic.jobSpec" . | fromYaml)) }}
{{- end }}
