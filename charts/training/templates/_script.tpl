{{/*
The script of a training job: the source in the values, or the chart's own check.
*/}}

{{/*
The source of the script: that of the values; the chart's own check if the values name no program; else empty.
Arguments: root (values script, args, command), check (the file of the check in the chart).
*/}}
{{- define "training.script" -}}
{{- $root := required "training.script needs root" .root }}
{{- $v := $root.Values }}
{{- if or $v.script (not (or $v.args $v.argGroups $v.command)) }}
{{- $v.script | default ($root.Files.Get (required "training.script needs check" .check)) }}
{{- end }}
{{- end }}

{{/*
The name of the script's ConfigMap.
Arguments: root, script (source).
*/}}
{{- define "training.scriptName" -}}
{{- $root := required "training.scriptName needs root" .root }}
{{- printf "%s-script-%s" (include "common.fullname" (dict "root" $root)) (required "training.scriptName needs script" .script | sha256sum | trunc 8) }}
{{- end }}

{{/*
The ConfigMap with the script, if there is one.
Arguments: root, component, script (source, empty for none).
*/}}
{{- define "training.scriptConfigMap" -}}
{{- $root := required "training.scriptConfigMap needs root" .root }}
{{- if .script -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "training.scriptName" (dict "root" $root "script" .script) | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" .component) | nindent 4 }}
immutable: true
data:
  train.py: {{ .script | toJson }}
{{- end }}
{{- end }}

{{/*
The arguments of the values: args, then the groups of argGroups in the order of their names. Values files that each
name a group add to each other, whereas of two lists Helm keeps the last. As a JSON list.
Arguments: root (values args, argGroups).
*/}}
{{- define "training.arguments" -}}
{{- $v := (required "training.arguments needs root" .root).Values }}
{{- $words := $v.args }}
{{- range $group := $v.argGroups }}{{ $words = concat $words $group }}{{ end }}
{{- toJson $words }}
{{- end }}

{{/*
The arguments of a container that runs the script, or a program in the image, as a JSON list.
Arguments: root (values args, argGroups), script (source, empty for none).
*/}}
{{- define "training.scriptArguments" -}}
{{- $args := include "training.arguments" (dict "root" (required "training.scriptArguments needs root" .root)) | fromJsonArray }}
{{- ternary (prepend $args "/bireme/script/train.py") $args (not (empty .script)) | toJson }}
{{- end }}
