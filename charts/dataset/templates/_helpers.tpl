{{- define "dataset.target" -}}
{{ printf "/claim/%s" .Values.claim.path | trimSuffix "//" }}
{{- end }}

{{/*
Where the files are until they are published.
*/}}
{{- define "dataset.staging" -}}
{{- if eq .Values.claim.path "/" }}/claim/.bireme.staging{{ else }}/claim/{{ regexFind "^.*/" .Values.claim.path }}.{{ base .Values.claim.path }}.staging{{ end }}
{{- end }}

{{/*
The settings of bireme_runtime.dataset.claim, as JSON. The claim of source N is mounted at /sources/N.
*/}}
{{- define "dataset.settings" -}}
{{- $sources := list }}
{{- range $i, $source := .Values.sources }}
{{- $url := $source.url | default (printf "file:///sources/%d" $i) }}
{{- $sources = append $sources (merge (dict "url" $url) (pick $source "path" "sha256" "sums" "extract")) }}
{{- end }}
{{- $settings := dict "target" (include "dataset.target" .) "sources" $sources "shards" .Values.shards
    "parallel" (int64 .Values.parallel) "partMiB" (int64 .Values.partMiB) "workers" (int64 .Values.workers) }}
{{- if eq .Values.claim.path "/" }}{{ $_ := set $settings "root" true }}{{ end }}
{{- if .Values.replace }}{{ $_ := set $settings "replace" true }}{{ end }}
{{- with .Values.upload }}{{ $_ := set $settings "upload" . }}{{ end }}
{{- with .Values.prepare.script }}{{ $_ := set $settings "prepare" (sha256sum . | trunc 16) }}{{ $_ := set $settings "held" true }}{{ end }}
{{- toJson $settings }}
{{- end }}

{{/*
The variables of every step: the settings, and those of S3.
*/}}
{{- define "dataset.env" -}}
- {name: PYTHONPATH, value: /bireme/runtime}
- {name: PYTHONUNBUFFERED, value: "1"}
- {name: BIREME_DATASET, value: {{ include "dataset.settings" . | quote }}}
{{ include "common.proxy" .Values.proxy }}
{{- with .Values.caBundle.configMap }}
- {name: SSL_CERT_FILE, value: {{ printf "/bireme/ca/%s" $.Values.caBundle.key | quote }}}
{{- end }}
{{ include "runtime.s3.env" (dict "s3" .Values.s3) }}
{{- range $i, $source := .Values.sources }}
{{- $own := printf "BIREME_SOURCE_%d_" $i }}
{{- with $source.s3 }}
{{ include "runtime.s3.env" (dict "s3" . "prefix" $own) }}
{{- end }}
{{- with $source.token }}
- name: {{ $own }}BIREME_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ .secret | quote }}, key: {{ .key | default "token" | quote }}}
{{- end }}
{{- with $source.rclone }}
- {name: {{ $own }}RCLONE_CONFIG, value: {{ printf "/bireme/rclone/%d/%s" $i (.key | default "rclone.conf") | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/*
The fields of every container of the Job.
*/}}
{{- define "dataset.container" -}}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - {name: claim, mountPath: /claim}
  - {name: runtime, mountPath: /bireme/runtime, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- if .Values.caBundle.configMap }}
  - {name: ca, mountPath: /bireme/ca, readOnly: true}
  {{- end }}
  {{- range $i, $source := .Values.sources }}
  {{- if $source.rclone }}
  - {name: rclone-{{ $i }}, mountPath: /bireme/rclone/{{ $i }}, readOnly: true}
  {{- end }}
  {{- if $source.claimName }}
  - {name: source-{{ $i }}, mountPath: /sources/{{ $i }}, readOnly: true{{ with $source.subPath }}, subPath: {{ . | quote }}{{ end }}}
  {{- end }}
  {{- end }}
{{- end }}

{{- define "dataset.script" -}}
{{- $staging := include "dataset.staging" . -}}
# Nothing is staged where the dataset is there already.
[ -d {{ $staging | squote }} ] || exit 0
cd {{ $staging | squote }}
{{ regexReplaceAll `\n*$` .Values.prepare.script "" }}
{{ end }}

{{/*
The fields of the Job's spec that do not change in place.
*/}}
{{- define "dataset.jobSpec" -}}
{{- include "common.once" (dict "root" . "template" "dataset.jobSpec.text" "arguments" .) }}
{{- end }}
{{- define "dataset.jobSpec.text" -}}
completionMode: Indexed
completions: {{ int64 .Values.workers }}
parallelism: {{ int64 .Values.workers }}
backoffLimit: {{ int64 .Values.backoffLimit }}
podReplacementPolicy: Failed
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions:
        - {type: DisruptionTarget, status: "True"}
    # Exit codes of the runtime after which another attempt does not help.
    {{- range list "stage" "publish" }}
    - action: FailJob
      onExitCodes: {containerName: {{ . | quote }}, operator: In, values: [64, 77, 78]}
    {{- end }}
template:
  metadata:
    {{- include "common.podMetadata" (dict "root" . "component" "copier") | nindent 4 }}
  spec:
    restartPolicy: Never
    automountServiceAccountToken: false
    enableServiceLinks: false
    serviceAccountName: {{ include "common.serviceAccountName" (dict "root" .) | quote }}
    {{- include "common.imagePullSecrets" (dict "root" .) | nindent 4 }}
    securityContext:
      {{- toYaml .Values.podSecurityContext | nindent 6 }}
    {{- with .Values.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    initContainers:
      {{- if .Values.prepare.script }}
      # Runs until the pod ends: another Job must not copy to this folder while the script changes it.
      - name: lock
        image: {{ include "common.image" (dict "root" . "image" .Values.image) | quote }}
        imagePullPolicy: {{ .Values.image.pullPolicy | quote }}
        restartPolicy: Always
        command: [python3, -m, bireme_runtime.dataset.claim, hold, /tmp/held]
        env:
          - {name: PYTHONPATH, value: /bireme/runtime}
          - {name: BIREME_DATASET, value: {{ include "dataset.settings" . | quote }}}
        startupProbe:
          exec: {command: [python3, -c, import os; os.stat("/tmp/held")]}
          periodSeconds: 2
          timeoutSeconds: 10
          # A year: the other Job may take long.
          failureThreshold: 15768000
        {{- $small := dict "requests" (dict "cpu" "10m" "memory" "32Mi") "limits" (dict "memory" "128Mi") }}
        {{- include "dataset.container" (dict "Values" (merge (dict "resources" $small) (omit .Values "resources"))) | nindent 8 }}
      {{- end }}
      - name: stage
        image: {{ include "common.image" (dict "root" . "image" .Values.image) | quote }}
        imagePullPolicy: {{ .Values.image.pullPolicy | quote }}
        command: [python3, -m, bireme_runtime.dataset.claim, stage]
        env:
          {{- include "dataset.env" . | nindent 10 }}
        {{- include "dataset.container" . | nindent 8 }}
      {{- if .Values.prepare.script }}
      - name: prepare
        image: {{ include "common.image" (dict "root" . "image" .Values.prepare.image) | quote }}
        imagePullPolicy: {{ .Values.prepare.image.pullPolicy | quote }}
        command: [sh, -ec]
        args: [{{ include "dataset.script" . | quote }}]
        {{- include "dataset.container" . | nindent 8 }}
      {{- end }}
    containers:
      - name: publish
        image: {{ include "common.image" (dict "root" . "image" .Values.image) | quote }}
        imagePullPolicy: {{ .Values.image.pullPolicy | quote }}
        command: [python3, -m, bireme_runtime.dataset.claim, publish]
        env:
          {{- include "dataset.env" . | nindent 10 }}
        {{- include "dataset.container" . | nindent 8 }}
    volumes:
      - name: claim
        persistentVolumeClaim: {claimName: {{ .Values.claim.name | quote }}}
      - name: tmp
        emptyDir: {}
      {{- with .Values.caBundle.configMap }}
      - name: ca
        configMap: {name: {{ . | quote }}}
      {{- end }}
      {{- include "runtime.volume" (dict "root" . "component" "dataset") | nindent 6 }}
      {{- range $i, $source := .Values.sources }}
      {{- with $source.rclone }}
      - name: rclone-{{ $i }}
        secret: {secretName: {{ .secret | quote }}}
      {{- end }}
      {{- with $source.claimName }}
      - name: source-{{ $i }}
        persistentVolumeClaim: {claimName: {{ . | quote }}, readOnly: true}
      {{- end }}
      {{- end }}
{{- end }}

{{- define "dataset.immutable" -}}
{{- include "common.once" (dict "root" . "template" "dataset.immutable.text" "arguments" .) }}
{{- end }}
{{- define "dataset.immutable.text" -}}
{{- include "common.immutable.job" (dict "spec" (include "dataset.jobSpec" . | fromYaml)) }}
{{- end }}
