{{/*
The variables of S3 that the runtime reads, with the names that AWS SDKs use. Without a Secret, the pod has the
credentials of its ServiceAccount (IRSA or Pod Identity), or of the node.
Arguments: s3 ({region, endpoint, anonymous, requesterPays, existingSecret}), prefix (optional: of all names, for one source of several).
*/}}
{{- define "runtime.s3.env" -}}
{{- $s3 := required "runtime.s3.env needs s3" .s3 -}}
{{- $prefix := .prefix | default "" -}}
{{- with $s3.region -}}
- {name: {{ $prefix }}AWS_REGION, value: {{ . | quote }}}
{{- end }}
{{- with $s3.endpoint }}
- {name: {{ $prefix }}AWS_ENDPOINT_URL_S3, value: {{ . | quote }}}
{{- end }}
{{- if $s3.anonymous }}
- {name: {{ $prefix }}BIREME_S3_ANONYMOUS, value: "true"}
{{- end }}
{{- if $s3.requesterPays }}
- {name: {{ $prefix }}BIREME_S3_REQUESTER_PAYS, value: "true"}
{{- end }}
{{- with $s3.existingSecret }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ printf "%s%s" $prefix . | quote }}
  valueFrom:
    secretKeyRef: {name: {{ $s3.existingSecret | quote }}, key: {{ . | quote }}}
{{- end }}
{{- /* Keys that expire have a token too. */}}
- name: {{ $prefix }}AWS_SESSION_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ $s3.existingSecret | quote }}, key: AWS_SESSION_TOKEN, optional: true}
{{- end }}
{{- end }}
