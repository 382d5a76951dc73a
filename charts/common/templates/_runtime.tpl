{{/*
bireme-runtime reaches the pods as ConfigMaps (docs/adr/0006): no image to publish or to pull. There is one per
component, so that a change of the code that one component runs leaves the pods of the others as they are. Its name
carries a digest of the content, so a newer runtime is a change of the pod template that an upgrade sees.

The annotation bireme/runtime of Chart.yaml is a YAML map from a component to the folders of its code below
bireme_runtime. A folder brings the files that are directly in it, not those of its subfolders. The library
chart's own Chart.yaml has the component dataset, which any chart may use.
*/}}

{{/*
Not empty when the pods run bireme-runtime, rather than what the image has (value runtime, where a chart has it).
Arguments: root.
*/}}
{{- define "common.hasRuntime" -}}
{{- if ne (toString (required "common.hasRuntime needs root" .root).Values.runtime) "false" }}true{{ end }}
{{- end }}

{{/*
Reads a component's files once a render, because their source takes most of a render's time. The result is the list
.root.Subcharts.common.runtime.COMPONENT with a dict {suffix, files} for each ConfigMap: its name is
"common.runtimeName" with the suffix, its files {path: source}. `kubectl apply` takes a quarter of a MiB.
Arguments: root, component.
*/}}
{{- define "common.runtime" -}}
{{- $root := required "common.runtime needs root" .root }}
{{- $component := required "common.runtime needs component" .component }}
{{- $common := $root.Subcharts.common }}
{{- /* A clone has them as symbolic links, which Flux drops from git sources. */}}
{{- if not (and $common ($common.Files.Get "files/runtime/bireme_runtime/__init__.py")) }}
{{- printf "the chart %s is without its library or its runtime, to which symbolic links lead in a clone: take the packed chart instead of a folder of a clone (make package; docs/gitops.md)" $root.Chart.Name | fail }}
{{- end }}
{{- $read := $common.runtime | default dict }}
{{- if not (hasKey $read $component) }}
{{- $folders := dict }}
{{- range list $common.Chart $root.Chart }}
{{- $folders = merge (index (.Annotations | default dict) "bireme/runtime" | default "" | fromYaml) $folders }}
{{- end }}
{{- $missing := printf "the annotation bireme/runtime in Chart.yaml of %s names no folders for %s" $root.Chart.Name $component }}
{{- $all := dict }}
{{- range prepend (required $missing (index $folders $component)) "bireme_runtime" }}
{{- range $path, $content := $common.Files.Glob (printf "files/runtime/%s/*" (ternary . (printf "bireme_runtime/%s" .) (hasPrefix "bireme_runtime" .))) }}
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
{{- $_ := set $common "runtime" (set $read $component (append $parts (dict "suffix" $digest "files" $files))) }}
{{- end }}
{{- end }}

{{/*
The name of a component's ConfigMaps, which a suffix completes.
Arguments: root, component.
*/}}
{{- define "common.runtimeName" -}}
{{- printf "%s-runtime-%s" (include "common.fullname" (dict "root" .root)) .component }}
{{- end }}

{{/*
The ConfigMaps. A ConfigMap's keys have no folders: "/" is written as "__" and undone by the mount.
Arguments: root, component.
*/}}
{{- define "common.runtimeConfigMap" -}}
{{- include "common.runtime" . }}
{{- $root := .root }}
{{- $component := .component }}
{{- $name := include "common.runtimeName" . }}
{{- range $number, $part := index $root.Subcharts.common.runtime $component }}
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
The volume of a pod that runs a component's code; it is mounted at /bireme/runtime and PYTHONPATH points there.
Arguments: root, component, name (of the volume, optional: runtime).
*/}}
{{- define "common.runtimeVolume" -}}
{{- include "common.runtime" . }}
{{- $name := include "common.runtimeName" . -}}
- name: {{ .name | default "runtime" | quote }}
  projected:
    sources:
      {{- range index .root.Subcharts.common.runtime .component }}
      - configMap:
          name: {{ printf "%s-%s" $name .suffix | quote }}
          items:
            {{- range $path, $_ := .files }}
            - {key: {{ $path | replace "/" "__" | quote }}, path: {{ $path | quote }}}
            {{- end }}
      {{- end }}
{{- end }}

{{/*
Not empty when a job's pods stage or verify datasets.
Arguments: root (values staging, verify).
*/}}
{{- define "common.usesDatasets" -}}
{{- with (required "common.usesDatasets needs root" .root).Values }}
{{- if or .staging.claimName .verify.paths }}true{{ end }}
{{- end }}
{{- end }}

{{/*
The ConfigMap and the volume of the containers that stage and verify datasets, where there are such. They have their
own, because a change of their code is no reason to train again for a job without them.
Arguments: root (values staging, verify).
*/}}
{{- define "common.datasetConfigMap" -}}
{{- if include "common.usesDatasets" . }}
{{- include "common.runtimeConfigMap" (dict "root" .root "component" "dataset") }}
{{- end }}
{{- end }}

{{- define "common.datasetVolume" -}}
{{- if include "common.usesDatasets" . }}
{{- include "common.runtimeVolume" (dict "root" .root "component" "dataset" "name" "dataset-runtime") }}
{{- end }}
{{- end }}

{{/*
An init container with the runtime in the image of the workers, which does something to datasets before they train.
Its exit codes 64, 77 and 78 say that no other pod would do better.
Arguments: root (values image, python, securityContext, helperResources), name, arguments (of bireme_runtime.dataset), env (list of
EnvVar, optional), mounts (list of VolumeMount).
*/}}
{{- define "common.datasetContainer" -}}
{{- $root := required "common.datasetContainer needs root" .root }}
{{- $v := $root.Values -}}
- name: {{ required "common.datasetContainer needs name" .name | quote }}
  image: {{ include "common.image" (dict "root" $root "image" $v.image) | quote }}
  imagePullPolicy: {{ $v.image.pullPolicy | quote }}
  command:
    {{- toYaml (concat (list $v.python "-m" "bireme_runtime.dataset") (required "common.datasetContainer needs arguments" .arguments)) | nindent 4 }}
  env:
    - {name: PYTHONPATH, value: /bireme/runtime}
    {{- with .env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  resources:
    {{- toYaml $v.helperResources | nindent 4 }}
  securityContext:
    {{- toYaml $v.securityContext | nindent 4 }}
  volumeMounts:
    - {name: dataset-runtime, mountPath: /bireme/runtime, readOnly: true}
    {{- toYaml (required "common.datasetContainer needs mounts" .mounts) | nindent 4 }}
{{- end }}
