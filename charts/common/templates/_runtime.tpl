{{/*
bireme-runtime reaches the pods as a ConfigMap (docs/adr/0006): no image to publish or to pull. The name
carries a digest of the content, so a newer runtime is a change of the pod template that an upgrade sees.
*/}}

{{/*
The runtime's files as JSON {path: source}. Objects beyond 256 KiB are too large for `kubectl apply`, which
keeps a copy of each in an annotation: a chart whose Chart.yaml has the annotation bireme.dev/runtime takes the
modules that this expression matches, the others all but those of the dispatcher's service, of Paddle and, unless the
values ask for them, of datasets and of S3.
Arguments: root.
*/}}
{{- define "common.runtimeFiles" -}}
{{- $root := required "common.runtimeFiles needs root" .root }}
{{- $wanted := index $root.Chart.Annotations "bireme.dev/runtime" }}
{{- $without := "^(dispatch_|paddle|dataset|backup_s3)" }}
{{- if or ($root.Values.staging | default dict).claimName ($root.Values.verify | default dict).paths }}{{ $without = "^(dispatch_|paddle|backup_s3)" }}{{ end }}
{{- if or ($root.Values.backup | default dict).url ($root.Values.restore | default dict).url }}{{ $without = "^(dispatch_|paddle)" }}{{ end }}
{{- $files := dict }}
{{- range $path, $content := $root.Subcharts.common.Files.Glob "files/runtime/**" }}
{{- if ternary (regexMatch $wanted (base $path)) (not (regexMatch $without (base $path))) (not (empty $wanted)) }}
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
