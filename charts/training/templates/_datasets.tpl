{{/*
Not empty when the pods run bireme-runtime, rather than what the image has (value runtime, where a chart has it).
Arguments: root.
*/}}
{{- define "training.hasRuntime" -}}
{{- if ne (toString (required "training.hasRuntime needs root" .root).Values.launch.runtime) "false" }}true{{ end }}
{{- end }}

{{/*
Not empty when a job's pods stage or verify datasets.
Arguments: root (values data).
*/}}
{{- define "training.usesDatasets" -}}
{{- $data := (required "training.usesDatasets needs root" .root).Values.data }}
{{- if or $data.staging.claimName $data.verify.paths }}true{{ end }}
{{- end }}

{{/*
The ConfigMap and the volume of the containers that stage and verify datasets, where there are such. They have their
own, because a change of their code is no reason to train again for a job without them.
Arguments: root (values data).
*/}}
{{- define "training.datasetConfigMap" -}}
{{- if include "training.usesDatasets" . }}
{{- include "runtime.configMap" (dict "root" .root "component" "dataset") }}
{{- end }}
{{- end }}

{{- define "training.datasetVolume" -}}
{{- if include "training.usesDatasets" . }}
{{- include "runtime.volume" (dict "root" .root "component" "dataset" "name" "dataset-runtime") }}
{{- end }}
{{- end }}

{{/*
An init container in the image of the workers, which runs a command of bireme_runtime.dataset before they train.
Its exit codes 64, 77 and 78 say that no other pod would do better.
Arguments: root (values image, launch, securityContext, pod), name, arguments (of bireme_runtime.dataset), env (list of
EnvVar, optional), mounts (YAML).
*/}}
{{- define "training.datasetContainer" -}}
{{- $root := required "training.datasetContainer needs root" .root }}
{{- $v := $root.Values -}}
- name: {{ required "training.datasetContainer needs name" .name | quote }}
  image: {{ include "common.image" (dict "root" $root "image" $v.image) | quote }}
  imagePullPolicy: {{ $v.image.pullPolicy | quote }}
  command:
    {{- toYaml (concat (list $v.launch.python "-m" "bireme_runtime.dataset") (required "training.datasetContainer needs arguments" .arguments)) | nindent 4 }}
  env:
    - {name: PYTHONPATH, value: /bireme/runtime}
    {{- with .env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  resources:
    {{- toYaml $v.pod.helperResources | nindent 4 }}
  securityContext:
    {{- toYaml $v.securityContext | nindent 4 }}
  volumeMounts:
    - {name: dataset-runtime, mountPath: /bireme/runtime, readOnly: true}
    {{- required "training.datasetContainer needs mounts" .mounts | trim | nindent 4 }}
{{- end }}
