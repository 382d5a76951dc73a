{{/*
The script of a training job: the source in the values, or the chart's own check.
*/}}

{{/*
The source of the script: that of the values; the chart's own check if the values name no program; else empty, as for
the script of a repository.
Arguments: root (values script, args, launch), check (the file of the check in the chart).
*/}}
{{- define "training.script" -}}
{{- $root := required "training.script needs root" .root }}
{{- $v := $root.Values }}
{{- if or $v.script (not (or $v.args $v.launch.argGroups $v.launch.command $v.launch.git.url)) }}
{{- $v.script | default ($root.Files.Get (required "training.script needs check" .check)) }}
{{- end }}
{{- end }}

{{/*
Not empty when pods have the folder /bireme/script.
Arguments: root (values launch), script (source, empty for none).
*/}}
{{- define "training.hasFolder" -}}
{{- $launch := (required "training.hasFolder needs root" .root).Values.launch }}
{{- if or .script $launch.files $launch.git.url }}true{{ end }}
{{- end }}

{{/*
The path of the script, empty where the values start another program.
Arguments: root (values launch), script (source, empty for none).
*/}}
{{- define "training.program" -}}
{{- $launch := (required "training.program needs root" .root).Values.launch }}
{{- if or .script (and $launch.git.url (not $launch.command)) -}}
/bireme/script/{{ ternary "train.py" $launch.git.path (not (empty .script)) }}
{{- end }}
{{- end }}

{{/*
The name of the ConfigMap with script and files.
Arguments: root (values launch), script (source, empty for none).
*/}}
{{- define "training.scriptName" -}}
{{- $root := required "training.scriptName needs root" .root }}
{{- printf "%s-script-%s" (include "common.fullname" (dict "root" $root)) (printf "%s%s" .script (empty $root.Values.launch.files | ternary "" (toJson $root.Values.launch.files)) | sha256sum | trunc 8) }}
{{- end }}

{{/*
The volume of the folder, if pods have it. Keys of a ConfigMap have no "/", so its items say the paths.
Arguments: root (values launch), script (source, empty for none).
*/}}
{{- define "training.scriptVolume" -}}
{{- $root := required "training.scriptVolume needs root" .root }}
{{- if $root.Values.launch.git.url }}
- {name: script, emptyDir: {}}
{{- with $root.Values.launch.git.caBundle }}
- {name: git-ca, configMap: {name: {{ . | quote }}}}
{{- end }}
{{- else if or .script $root.Values.launch.files }}
- name: script
  configMap:
    name: {{ include "training.scriptName" . | quote }}
    {{- if $root.Values.launch.files }}
    items:
      {{- if .script }}
      - {key: train.py, path: train.py}
      {{- end }}
      {{- range $index, $path := keys $root.Values.launch.files | sortAlpha }}
      - {key: {{ printf "%d.%s" $index (base $path) | quote }}, path: {{ $path | quote }}}
      {{- end }}
    {{- end }}
{{- end }}
{{- end }}

{{/*
The ConfigMap with the script and the files, if there are any.
Arguments: root (values launch), component, script (source, empty for none).
*/}}
{{- define "training.scriptConfigMap" -}}
{{- $root := required "training.scriptConfigMap needs root" .root }}
{{- if or .script $root.Values.launch.files -}}
{{- $texts := dict }}
{{- $bytes := dict }}
{{- with .script }}{{ $_ := set $texts "train.py" . }}{{ end }}
{{- range $index, $path := keys $root.Values.launch.files | sortAlpha }}
{{- $file := index $root.Values.launch.files $path }}
{{- $key := printf "%d.%s" $index (base $path) }}
{{- if kindIs "string" $file }}{{ $_ := set $texts $key $file }}{{ else }}{{ $_ := set $bytes $key $file.base64 }}{{ end }}
{{- end -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "training.scriptName" . | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" .component) | nindent 4 }}
immutable: true
{{- with $texts }}
data:
  {{- range $key, $text := . }}
  {{ $key }}: {{ $text | toJson }}
  {{- end }}
{{- end }}
{{- with $bytes }}
binaryData:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
