{{/*
A scalar as text. Numbers of values files arrive as floats: whole ones are printed without an exponent.
Arguments: value.
*/}}
{{- define "common.text" -}}
{{- if kindIs "float64" .value }}
{{- ternary (.value | int64 | toString) (.value | toString) (eq (floor .value) .value) }}
{{- else }}
{{- .value | toString }}
{{- end }}
{{- end }}

{{/*
The environment of a container. What the chart works out gives way to the values of env, and both to
extraEnv; a name stands once, because server-side apply merges by name.
Arguments: root (values env, extraEnv), derived {name: value}, fixed (list of EnvVar that nobody overrides).
*/}}
{{- define "common.env" -}}
{{- $v := (required "common.env needs root" .root).Values }}
{{- $plain := mergeOverwrite (deepCopy (required "common.env needs derived" .derived)) (deepCopy $v.env) }}
{{- range concat (required "common.env needs fixed" .fixed) $v.extraEnv }}{{ $_ := unset $plain .name }}{{ end -}}
env:
  {{- with .fixed }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- range $name, $value := $plain }}
  - name: {{ $name }}
    value: {{ include "common.text" (dict "value" $value) | quote }}
  {{- end }}
  {{- with $v.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/*
Volumes of the claims, one for each claim however often it is mounted.
Arguments: root (values claims).
*/}}
{{- define "common.claimVolumes" -}}
{{- $names := list }}
{{- range (required "common.claimVolumes needs root" .root).Values.claims }}{{ $names = append $names .claimName }}{{ end }}
{{- range $i, $name := uniq $names }}
- name: claim-{{ $i }}
  persistentVolumeClaim:
    claimName: {{ $name }}
{{- end }}
{{- end }}

{{/*
Mounts of the claims.
Arguments: root (values claims), readOnly (true mounts all of them read-only).
*/}}
{{- define "common.claimMounts" -}}
{{- $claims := (required "common.claimMounts needs root" .root).Values.claims }}
{{- $readOnly := .readOnly }}
{{- $names := list }}
{{- range $claims }}{{ $names = append $names .claimName }}{{ end }}
{{- $order := uniq $names }}
{{- range $claim := $claims }}
{{- range $i, $name := $order }}
{{- if eq $name $claim.claimName }}
- name: claim-{{ $i }}
  mountPath: {{ $claim.mountPath }}
  {{- with $claim.subPath }}
  subPath: {{ . }}
  {{- end }}
  {{- if or $readOnly $claim.readOnly }}
  readOnly: true
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Scheduling that is passed on as it is given.
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
The ServiceAccount object, when the chart is to make one.
Arguments: root, component.
*/}}
{{- define "common.serviceAccount" -}}
{{- $root := required "common.serviceAccount needs root" .root }}
{{- if $root.Values.serviceAccount.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "common.serviceAccountName" (dict "root" $root) }}
  namespace: {{ $root.Release.Namespace }}
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
Objects of the user's own, templated with the chart's context.
Arguments: root (values extraObjects).
*/}}
{{- define "common.extraObjects" -}}
{{- $root := required "common.extraObjects needs root" .root }}
{{- range $root.Values.extraObjects }}
---
{{ tpl (ternary . (toYaml .) (kindIs "string" .)) $root }}
{{- end }}
{{- end }}
