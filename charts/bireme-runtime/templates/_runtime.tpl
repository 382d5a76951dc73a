{{/*
bireme-runtime reaches the pods as ConfigMaps (docs/adr/0006): no image to publish or to pull. There is one per
component, so that a change of the code that one component runs leaves the pods of the others as they are. Its name
carries a digest of the content, so a newer runtime is a change of the pod template that an upgrade sees.

The annotation bireme/runtime of Chart.yaml is a YAML map from a component to the folders of its code below
bireme_runtime, and so is that of charts/training. A folder brings the files that are directly in it, not those of its
subfolders. A packed chart has the files of these folders only (hack/package.py).
*/}}

{{/*
Reads a component's files once a render, because their source takes most of a render's time. The result is the list
COMPONENT in the dict `parts` of this library, with a dict {suffix, files} for each ConfigMap: its name is "runtime.name"
with the suffix, its files {path: source}. `kubectl apply` takes a quarter of a MiB.
Arguments: root, component.
*/}}
{{- define "runtime.read" -}}
{{- $root := required "runtime.read needs root" .root }}
{{- $component := required "runtime.read needs component" .component }}
{{- $library := index $root.Subcharts "bireme-runtime" }}
{{- /* A clone has them as symbolic links, which Flux drops from git sources. */}}
{{- if not (and $library ($library.Files.Get "files/runtime/bireme_runtime/__init__.py")) }}
{{- printf "the chart %s is without its library or its runtime, to which symbolic links lead in a clone: take the packed chart instead of a folder of a clone (make package; docs/gitops.md)" $root.Chart.Name | fail }}
{{- end }}
{{- $read := $library.parts | default dict }}
{{- if not (hasKey $read $component) }}
{{- $folders := dict }}
{{- range list ($root.Subcharts.training | default dict).Chart $root.Chart }}
{{- $folders = merge (index ((. | default dict).Annotations | default dict) "bireme/runtime" | default "" | fromYaml) $folders }}
{{- end }}
{{- $missing := printf "the annotation bireme/runtime in Chart.yaml of %s names no folders for %s" $root.Chart.Name $component }}
{{- $all := dict }}
{{- range prepend (required $missing (index $folders $component)) "bireme_runtime" }}
{{- range $path, $content := $library.Files.Glob (printf "files/runtime/%s/*" (ternary . (printf "bireme_runtime/%s" .) (hasPrefix "bireme_runtime" .))) }}
{{- $_ := set $all (trimPrefix "files/runtime/" $path) (toString $content) }}
{{- end }}
{{- end }}
{{- $digest := $all | toJson | sha256sum | trunc 8 }}
{{- $parts := list }}
{{- $files := dict }}
{{- $size := 0 }}
{{- range $path, $content := $all }}
{{- $size = add $size (len $content) }}
{{- if gt (int $size) 200000 }}
{{- $parts = append $parts (dict "suffix" (printf "%s-%d" $digest (len $parts)) "files" $files) }}
{{- $files = dict }}
{{- $size = len $content }}
{{- end }}
{{- $_ := set $files $path $content }}
{{- end }}
{{- $_ := set $library "parts" (set $read $component (append $parts (dict "suffix" $digest "files" $files))) }}
{{- end }}
{{- end }}

{{/*
The name of a component's ConfigMaps, which a suffix completes.
Arguments: root, component.
*/}}
{{- define "runtime.name" -}}
{{- printf "%s-runtime-%s" (include "common.fullname" (dict "root" .root)) .component }}
{{- end }}

{{/*
The ConfigMaps. A ConfigMap's keys have no folders: "/" is written as "__" and undone by the mount.
Arguments: root, component.
*/}}
{{- define "runtime.configMap" -}}
{{- include "runtime.read" . }}
{{- $root := .root }}
{{- $component := .component }}
{{- $name := include "runtime.name" . }}
{{- range $number, $part := index $root.Subcharts "bireme-runtime" "parts" $component }}
{{- if $number }}
---
{{ end -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ printf "%s-%s" $name $part.suffix | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" $component) | nindent 4 }}
immutable: true
data:
  {{- range $path, $content := $part.files }}
  {{ $path | replace "/" "__" }}: {{ $content | toJson }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
The volume of a pod that runs a component's code. It is mounted at /bireme/runtime and PYTHONPATH points there.
Arguments: root, component, name (of the volume, optional: runtime).
*/}}
{{- define "runtime.volume" -}}
{{- include "runtime.read" . }}
{{- $name := include "runtime.name" . -}}
- name: {{ .name | default "runtime" | quote }}
  projected:
    sources:
      {{- range index .root.Subcharts "bireme-runtime" "parts" .component }}
      - configMap:
          name: {{ printf "%s-%s" $name .suffix | quote }}
          items:
            {{- range $path, $_ := .files }}
            - {key: {{ $path | replace "/" "__" | quote }}, path: {{ $path | quote }}}
            {{- end }}
      {{- end }}
{{- end }}
