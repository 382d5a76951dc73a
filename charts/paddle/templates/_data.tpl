{{/*
What writes the data before training: files of one shard each, and their list last. Trainers wait for the list.
*/}}
{{- define "paddle.dataRun" -}}
{{- $v := .Values }}
{{- $values := include "paddle.values" (dict "root" . "role" "server") | fromJson }}
{{- $view := dict "Values" $values "Release" .Release "Chart" .Chart "Subcharts" .Subcharts -}}
backoffLimit: 3
template:
  metadata:
    labels:
      {{- include "common.selectorLabels" (dict "root" . "component" "data") | nindent 6 }}
  spec:
    restartPolicy: Never
    automountServiceAccountToken: false
    enableServiceLinks: false
    serviceAccountName: {{ include "common.serviceAccountName" (dict "root" .) }}
    {{- include "common.imagePullSecrets" (dict "root" .) | nindent 4 }}
    securityContext:
      {{- toYaml $v.podSecurityContext | nindent 6 }}
    containers:
      - name: data
        image: {{ include "common.image" (dict "root" . "image" $v.image) }}
        imagePullPolicy: {{ $v.image.pullPolicy }}
        command: [{{ $v.python }}]
        args:
          {{- range $v.dataPrep.args }}
          - {{ include "common.text" (dict "value" .) | quote }}
          {{- end }}
        {{- include "common.env" (dict "root" . "derived" (dict "HOME" "/tmp" "PYTHONUNBUFFERED" "1") "fixed" (list
            (dict "name" "OUT_DIR" "value" (printf "%s/data" (include "paddle.folder" .)))
            (dict "name" "SPLIT_COUNT" "value" (printf "%d" (int64 $v.dataPrep.splitCount))))) | nindent 8 }}
        {{- with $v.dataPrep.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        securityContext:
          {{- toYaml $v.securityContext | nindent 10 }}
        volumeMounts:
          {{- include "common.claimMounts" (dict "root" $view "readOnly" false) | nindent 10 }}
    volumes:
      {{- include "common.claimVolumes" (dict "root" $view) | nindent 6 }}
{{- end }}

{{- define "paddle.dataParts" -}}
{{- include "common.immutable.jobParts" (dict "spec" (include "paddle.dataRun" . | fromYaml)) }}
{{- end }}

{{- define "paddle.dataJobObject" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "paddle.dataJob" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "common.labels" (dict "root" . "component" "data") | nindent 4 }}
  annotations:
    bireme.dev/immutable: {{ include "common.immutable.digests" (dict "parts" (include "paddle.dataParts" . | fromJson)) | quote }}
spec:
  {{- include "paddle.dataRun" . | nindent 2 }}
{{- end }}
