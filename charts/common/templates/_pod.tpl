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
A scalar as text. Helm reads numbers as floats; this prints whole ones without an exponent.
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
The items of a list as quoted text, in YAML.
Arguments: words.
*/}}
{{- define "common.words" -}}
{{- range .words }}
- {{ include "common.text" (dict "value" .) | quote }}
{{- end }}
{{- end }}

{{/*
The environment of a container. `env` of the values overrides `derived`, and `extraEnv` overrides both. PYTHONPATH of `env`
comes after ours, where the runtime is. Each name appears once, because server-side apply merges the list by name. A variable comes
after those that it refers to as $(NAME), because the kubelet knows only what is above.
Arguments: root (values env, extraEnv), derived {name: value}, fixed (list of EnvVar that the values cannot override).
*/}}
{{- define "common.env" -}}
{{- $v := (required "common.env needs root" .root).Values }}
{{- $derived := required "common.env needs derived" .derived }}
{{- if not (include "common.hasRuntime" (dict "root" .root)) }}{{ $derived = omit $derived "PYTHONPATH" }}{{ end }}
{{- $plain := mergeOverwrite (deepCopy $derived) (deepCopy $v.env) }}
{{- $paths := compact (list (get $derived "PYTHONPATH") (get $v.env "PYTHONPATH")) }}
{{- with $paths }}{{ $_ := set $plain "PYTHONPATH" (join ":" .) }}{{ end }}
{{- range concat (required "common.env needs fixed" .fixed) $v.extraEnv }}{{ $_ := unset $plain .name }}{{ end -}}
env:
  {{- with .fixed }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- $left := list }}
  {{- range $name, $value := $plain }}{{ $left = append $left (dict "name" $name "text" (include "common.text" (dict "value" $value))) }}{{ end }}
  {{- $left = concat $left $v.extraEnv }}
  {{- range until (min 10 (len $left) | int) }}
  {{- $unwritten := dict }}
  {{- range $left }}{{ $_ := set $unwritten (printf "$(%s)" .name) true }}{{ end }}
  {{- $waiting := list }}
  {{- range $each := $left }}
  {{- $own := printf "$(%s)" $each.name }}
  {{- $waits := false }}
  {{- range regexFindAll `\$\([^)]+\)` ($each.text | default $each.value | toString) -1 }}{{ $waits = or $waits (and (ne . $own) (hasKey $unwritten .)) }}{{ end }}
  {{- if $waits }}{{ $waiting = append $waiting $each }}{{ else }}{{ include "common.envVar" (dict "variable" $each) | nindent 2 }}{{ end }}
  {{- end }}
  {{- $left = $waiting }}
  {{- end }}
  {{- range $left }}{{ include "common.envVar" (dict "variable" .) | nindent 2 }}{{ end }}
{{- end }}

{{/*
An item of env. Arguments: variable (an EnvVar, or {name, text}).
*/}}
{{- define "common.envVar" -}}
{{- $variable := required "common.envVar needs variable" .variable }}
{{- if hasKey $variable "text" -}}
- name: {{ $variable.name | quote }}
  value: {{ $variable.text | quote }}
{{- else }}
{{- toYaml (list $variable) }}
{{- end }}
{{- end }}

{{/*
The name of the volume for a claim, empty if `claims` does not list it. A claim has one volume, even if it is mounted
several times.
Arguments: root (values claims), claimName.
*/}}
{{- define "common.claimVolume" -}}
{{- $wanted := required "common.claimVolume needs claimName" .claimName }}
{{- $names := list }}
{{- range (required "common.claimVolume needs root" .root).Values.claims }}{{ $names = append $names .claimName }}{{ end }}
{{- range $i, $name := uniq $names }}
{{- if eq $name $wanted }}claim-{{ $i }}{{ end }}
{{- end }}
{{- end }}

{{/*
Volumes of the claims.
Arguments: root (values claims).
*/}}
{{- define "common.claimVolumes" -}}
{{- $root := required "common.claimVolumes needs root" .root }}
{{- $names := list }}
{{- range $root.Values.claims }}{{ $names = append $names .claimName }}{{ end }}
{{- range uniq $names }}
- name: {{ include "common.claimVolume" (dict "root" $root "claimName" .) | quote }}
  persistentVolumeClaim:
    claimName: {{ . | quote }}
{{- end }}
{{- end }}

{{/*
Mounts of the claims.
Arguments: root (values claims), readOnly (true mounts all of them read-only).
*/}}
{{- define "common.claimMounts" -}}
{{- $root := required "common.claimMounts needs root" .root }}
{{- $readOnly := .readOnly }}
{{- range $root.Values.claims }}
- name: {{ include "common.claimVolume" (dict "root" $root "claimName" .claimName) | quote }}
  mountPath: {{ .mountPath | quote }}
  {{- with .subPath }}
  subPath: {{ . | quote }}
  {{- end }}
  {{- if or $readOnly .readOnly }}
  readOnly: true
  {{- end }}
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
