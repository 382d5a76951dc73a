{{/*
The variables of S3 that the runtime reads, with the names that AWS SDKs use. Without a Secret, the pod has the
credentials of its ServiceAccount (IRSA or Pod Identity).
Arguments: root (values s3 {region, endpoint, anonymous, existingSecret}).
*/}}
{{- define "common.s3.env" -}}
{{- $s3 := (required "common.s3.env needs root" .root).Values.s3 -}}
- {name: AWS_REGION, value: {{ $s3.region | quote }}}
{{- with $s3.endpoint }}
- {name: AWS_ENDPOINT_URL_S3, value: {{ . | quote }}}
{{- end }}
{{- if $s3.anonymous }}
- {name: BIREME_S3_ANONYMOUS, value: "true"}
{{- end }}
{{- with $s3.existingSecret }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ . | quote }}
  valueFrom:
    secretKeyRef: {name: {{ $s3.existingSecret | quote }}, key: {{ . | quote }}}
{{- end }}
{{- /* Keys that expire have a token too. */}}
- name: AWS_SESSION_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ $s3.existingSecret | quote }}, key: AWS_SESSION_TOKEN, optional: true}
{{- end }}
{{- end }}
