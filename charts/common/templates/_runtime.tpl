{{/*
bireme-runtime reaches the pods as a ConfigMap (docs/adr/0006): no image to publish or to pull. The name
carries a digest of the content, so a newer runtime is a change of the pod template that an upgrade sees.
*/}}

{{/*
The runtime's files as JSON {path: source}: those whose names the annotation bireme.dev/runtime of Chart.yaml matches,
and those that the values ask for. All of them would be more than `kubectl apply` can take, which keeps a copy of an
object in an annotation of 256 KiB; and a job's pods change with a module that is not theirs.
Arguments: root.
*/}}
{{- define "common.runtimeFiles" -}}
{{- $root := required "common.runtimeFiles needs root" .root }}
{{- $wanted := list (required "common.runtimeFiles needs the annotation bireme.dev/runtime in Chart.yaml" (index $root.Chart.Annotations "bireme.dev/runtime")) }}
{{- if or ($root.Values.staging | default dict).claimName ($root.Values.verify | default dict).paths }}{{ $wanted = append $wanted "^dataset" }}{{ end }}
{{- if or ($root.Values.backup | default dict).url ($root.Values.restore | default dict).url }}{{ $wanted = append $wanted "^(backup_s3|dataset_s)" }}{{ end }}
{{- $files := dict }}
{{- range $path, $content := $root.Subcharts.common.Files.Glob "files/runtime/**" }}
{{- if regexMatch (join "|" $wanted) (base $path) }}
{{- $_ := set $files (trimPrefix "files/runtime/" $path) ($content | toString) }}
{{- end }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{/*
The name of the runtime's ConfigMap.
Arguments: root.
*/}}
{{- define "common.runtimeName" -}}
{{- $root := required "common.runtimeName needs root" .root }}
{{- printf "%s-runtime-%s" (include "common.fullname" (dict "root" $root)) (include "common.runtimeFiles" (dict "root" $root) | sha256sum | trunc 8) }}
{{- end }}

{{/*
The ConfigMap object. A ConfigMap's keys have no folders: "/" is written as "__" and undone by the mount.
Arguments: root, component.
*/}}
{{- define "common.runtimeConfigMap" -}}
{{- $root := required "common.runtimeConfigMap needs root" .root -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "common.runtimeName" (dict "root" $root) }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" .component) | nindent 4 }}
immutable: true
data:
  {{- range $path, $content := include "common.runtimeFiles" (dict "root" $root) | fromJson }}
  {{ $path | replace "/" "__" }}: {{ $content | toJson }}
  {{- end }}
{{- end }}

{{/*
The volume of a pod that uses the runtime; it is mounted at /bireme/runtime and PYTHONPATH points there.
Arguments: root.
*/}}
{{- define "common.runtimeVolume" -}}
{{- $root := required "common.runtimeVolume needs root" .root -}}
- name: runtime
  configMap:
    name: {{ include "common.runtimeName" (dict "root" $root) }}
    items:
      {{- range $path, $_ := include "common.runtimeFiles" (dict "root" $root) | fromJson }}
      - {key: {{ $path | replace "/" "__" }}, path: {{ $path }}}
      {{- end }}
{{- end }}

{{/*
An init container with the runtime in the image of the workers, which does something to datasets before they train.
Its exit codes 64, 77 and 78 say that no other pod would do better.
Arguments: root (values image, python, securityContext), name, arguments (of bireme_runtime.dataset), env (list of
EnvVar, optional), mounts (list of VolumeMount).
*/}}
{{- define "common.datasetContainer" -}}
{{- $root := required "common.datasetContainer needs root" .root }}
{{- $v := $root.Values -}}
- name: {{ required "common.datasetContainer needs name" .name }}
  image: {{ include "common.image" (dict "root" $root "image" $v.image) }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  command:
    {{- toYaml (concat (list $v.python "-m" "bireme_runtime.dataset") (required "common.datasetContainer needs arguments" .arguments)) | nindent 4 }}
  env:
    - {name: PYTHONPATH, value: /bireme/runtime}
    {{- with .env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  resources:
    requests: {cpu: 100m, memory: 256Mi}
    limits: {memory: 1Gi}
  securityContext:
    {{- toYaml $v.securityContext | nindent 4 }}
  volumeMounts:
    - {name: runtime, mountPath: /bireme/runtime, readOnly: true}
    {{- toYaml (required "common.datasetContainer needs mounts" .mounts) | nindent 4 }}
{{- end }}
