{{/*
The spec of the Job that writes the data before training: files of one shard each, and last their list, for which
trainers wait.
*/}}
{{- define "paddle.dataSpec" -}}
{{- $v := .Values }}
{{- include "paddle.view" (dict "root" . "role" "server") }}
{{- $view := .Views.server -}}
backoffLimit: 3
template:
  metadata:
    labels:
      {{- include "common.selectorLabels" (dict "root" . "component" "data") | nindent 6 }}
  spec:
    restartPolicy: Never
    automountServiceAccountToken: false
    enableServiceLinks: false
    serviceAccountName: {{ include "common.serviceAccountName" (dict "root" .) | quote }}
    {{- include "common.imagePullSecrets" (dict "root" .) | nindent 4 }}
    nodeSelector:
      kubernetes.io/os: linux
      {{- with include "training.architecture" (dict "root" .) }}
      kubernetes.io/arch: {{ . }}
      {{- end }}
    securityContext:
      {{- toYaml $v.podSecurityContext | nindent 6 }}
    {{- with include "training.git.container" (dict "root" .) }}
    initContainers:
      {{- . | nindent 6 }}
    {{- end }}
    containers:
      - name: data
        image: {{ include "common.image" (dict "root" . "image" $v.image) | quote }}
        imagePullPolicy: {{ $v.image.pullPolicy | quote }}
        command: [{{ $v.launch.python | quote }}]
        {{- if or $v.launch.files $v.launch.git.url }}
        workingDir: /bireme/script
        {{- end }}
        args:
          {{- range $v.data.prep.args }}
          - {{ include "training.text" (dict "value" .) | quote }}
          {{- end }}
        {{- include "training.env" (dict "root" . "derived" (dict "HOME" "/tmp" "PYTHONUNBUFFERED" "1") "fixed" (list
            (dict "name" "OUT_DIR" "value" (printf "%s/data" (include "paddle.folder" .)))
            (dict "name" "SPLIT_COUNT" "value" (printf "%d" (int64 $v.data.prep.splitCount))))) | nindent 8 }}
        resources:
          {{- toYaml $v.data.prep.resources | nindent 10 }}
        securityContext:
          {{- toYaml $v.securityContext | nindent 10 }}
        volumeMounts:
          {{- if or $v.launch.files $v.launch.git.url }}
          - {name: script, mountPath: /bireme/script, readOnly: true}
          {{- end }}
          {{- include "training.claimMounts" (dict "root" $view "readOnly" false) | nindent 10 }}
    volumes:
      {{- if or $v.launch.files $v.launch.git.url }}
      {{- include "training.scriptVolume" (dict "root" . "script" (include "paddle.script" .)) | nindent 6 }}
      {{- end }}
      {{- include "training.claimVolumes" (dict "root" $view) | nindent 6 }}
{{- end }}

{{- define "paddle.dataDigests" -}}
{{- include "common.immutable.job" (dict "spec" (include "paddle.dataSpec" . | fromYaml)) }}
{{- end }}
