{{/*
The release's token: whoever changes the state of a job over HTTP shows it (SECURITY.md).
*/}}

{{- define "training.token.name" -}}
{{- printf "%s-token" (include "common.fullname" (dict "root" (required "training.token.name needs root" .root))) }}
{{- end }}

{{/*
The Secret. The token is made once, on the cluster.
Arguments: root, component.
*/}}
{{- define "training.token.secret" -}}
{{- $root := required "training.token.secret needs root" .root }}
{{- $name := include "training.token.name" (dict "root" $root) }}
{{- $made := dig "data" "token" "" (lookup "v1" "Secret" $root.Release.Namespace $name) -}}
apiVersion: v1
kind: Secret
metadata:
  name: {{ $name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" .component) | nindent 4 }}
  annotations:
    bireme/generated: data
type: Opaque
{{- /* Without a cluster the lookup of Jobs is empty, and no token is made: a second render would make another. */}}
{{- if or $made (lookup "batch/v1" "Job" $root.Release.Namespace "") }}
data:
  token: {{ $made | default (randAlphaNum 32 | b64enc) }}
{{- end }}
{{- end }}

{{/*
The variable with the token, as a list of EnvVar. Where the chart is rendered without a cluster, it may be unset.
Arguments: root.
*/}}
{{- define "training.token.env" -}}
- name: BIREME_RELEASE_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ include "training.token.name" (dict "root" .root) | quote }}, key: token, optional: true}
{{- end }}
