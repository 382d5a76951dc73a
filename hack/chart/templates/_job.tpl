{{/*
The fields of the Job's spec that do not change in place. job.yaml has the others.
*/}}
{{- define "NAME.jobSpec" -}}
completionMode: Indexed
backoffLimitPerIndex: {{ int64 .Values.backoffLimitPerIndex }}
podReplacementPolicy: Failed
podFailurePolicy:
  {{- include "common.podFailurePolicy" (dict "root" . "containers" (list "trainer") "codes" (list 64 78)) | nindent 2 }}
template:
  {{- include "NAME.pod" . | nindent 2 }}
{{- end }}

{{- define "NAME.immutableParts" -}}
{{- include "common.immutable.jobParts" (dict "spec" (include "NAME.jobSpec" . | fromYaml)) }}
{{- end }}
