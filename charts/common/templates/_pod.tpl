{{/*
The metadata of a pod template.
Arguments: root (values podLabels, podAnnotations), component, config (text, optional: a change of it replaces the pods),
labels and annotations (optional: dicts that podLabels and podAnnotations override).
*/}}
{{- define "common.podMetadata" -}}
{{- $v := (required "common.podMetadata needs root" .root).Values -}}
labels:
  {{- include "common.selectorLabels" . | nindent 2 }}
  {{- with merge (dict) ($v.podLabels | default dict) (.labels | default dict) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $config := ternary (dict "bireme/config" (.config | default "" | sha256sum | trunc 16)) dict (hasKey . "config") }}
{{- with merge $config $v.podAnnotations (.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Scheduling fields that are copied from the values.
Arguments: root (values affinity, topologySpreadConstraints, priorityClassName, schedulerName, runtimeClassName).
*/}}
{{- define "common.scheduling" -}}
{{- $v := (required "common.scheduling needs root" .root).Values }}
{{- range $key := list "affinity" "topologySpreadConstraints" "priorityClassName" "schedulerName" "runtimeClassName" }}
{{- with index $v $key }}
{{ toYaml (dict $key .) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The name of the ServiceAccount that pods use.
Arguments: root (values serviceAccount).
*/}}
{{- define "common.serviceAccountName" -}}
{{- $root := required "common.serviceAccountName needs root" .root }}
{{- $own := $root.Values.serviceAccount }}
{{- $own.name | default (ternary (include "common.fullname" (dict "root" $root)) "default" $own.create) }}
{{- end }}

{{/*
The ServiceAccount, if the values ask the chart to create it.
Arguments: root, component.
*/}}
{{- define "common.serviceAccount" -}}
{{- $root := required "common.serviceAccount needs root" .root }}
{{- if $root.Values.serviceAccount.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "common.serviceAccountName" (dict "root" $root) | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" .component) | nindent 4 }}
  {{- with $root.Values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}
{{- end }}

{{/*
The objects of extraObjects, templated with the chart's context.
Arguments: root (values extraObjects).
*/}}
{{- define "common.extraObjects" -}}
{{- $root := required "common.extraObjects needs root" .root }}
{{- range $i, $given := $root.Values.extraObjects }}
{{- $text := tpl (ternary $given (toYaml $given) (kindIs "string" $given)) $root }}
{{- range regexSplit "(?m)^---" $text -1 }}
{{- with trim . }}
{{- $object := fromYaml . }}
{{- if not (and (kindIs "string" $object.kind) (kindIs "string" $object.apiVersion) (kindIs "map" $object.metadata)) }}
{{- fail (printf "extraObjects: item %d is not an object of Kubernetes; it needs apiVersion, kind and metadata" $i) }}
{{- end }}
---
{{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
