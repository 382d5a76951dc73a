{{/*
One role's container. A collocated pserver is a sidecar: one that is lost starts again beside its trainer, and a trainer
that fails takes it along, so that the pod is replaced. As two containers, either would keep the pod of the other.
Arguments: root, role (server or trainer), worker, view (a root with the role's values).
*/}}
{{- define "paddle.container" -}}
{{- $v := .root.Values }}
{{- $isServer := eq .role "server" }}
{{- $script := include "paddle.scriptSource" .root -}}
- name: {{ ternary "pserver" "trainer" $isServer }}
  image: {{ include "common.image" (dict "root" .root "image" $v.image) }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  {{- if and $isServer (include "paddle.isCollocated" .root) }}
  restartPolicy: Always
  {{- end }}
  {{- if $v.command }}
  command:
    {{- toYaml $v.command | nindent 4 }}
  {{- else }}
  command: [{{ $v.python }}, -m, bireme_runtime.paddle, {{ ternary (ternary "server" "trainer" $isServer) "collective" (not (empty (include "paddle.hasServers" .root))) }}, --]
  {{- end }}
  {{- with concat (ternary (list "/bireme/script/train.py") list (not (empty $script))) $v.args }}
  args:
    {{- range . }}
    - {{ include "common.text" (dict "value" .) | quote }}
    {{- end }}
  {{- end }}
  envFrom:
    - configMapRef: {name: {{ include "paddle.settings" .root }}}
  {{- include "common.env" (dict "root" .view
      "fixed" (include "paddle.roleEnv" . | fromYamlArray)
      "derived" (include "paddle.derivedEnv" (dict "worker" .worker) | fromJson)) | nindent 2 }}
  {{- if $isServer }}
  {{- with $v.pservers.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    {{- range $number := until (int (add $v.pservers.portsNum $v.pservers.portsNumForSparse)) }}
    {{- $port := add (int64 $v.pservers.port) $number }}
    - {name: jobport{{ $number }}, containerPort: {{ $port }}{{ if $v.pservers.hostPorts }}, hostPort: {{ $port }}{{ end }}}
    {{- end }}
    - {name: control, containerPort: {{ int64 $v.controlPort }}}
  # It has its part of the parameters and accepts trainers.
  readinessProbe:
    tcpSocket: {port: jobport0}
    periodSeconds: 3
    failureThreshold: 1
  {{- else }}
  {{- include "common.workerResources" (dict "root" .view "worker" .worker) | nindent 2 }}
  {{- end }}
  securityContext:
    {{- toYaml $v.securityContext | nindent 4 }}
  volumeMounts:
    - {name: shm, mountPath: /dev/shm}
    - {name: runtime, mountPath: /bireme/runtime, readOnly: true}
    - {name: settings, mountPath: /bireme/settings, readOnly: true}
    {{- if $script }}
    - {name: script, mountPath: /bireme/script, readOnly: true}
    {{- end }}
    {{- include "common.claimMounts" (dict "root" .view "readOnly" false) | nindent 4 }}
    {{- if not $isServer }}
    {{- include "common.staging.mount" (dict "root" .view) | nindent 4 }}
    {{- end }}
    {{- with $v.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/*
Everything of a role's Job that Kubernetes will not change in place.
Arguments: root, role.
*/}}
{{- define "paddle.run" -}}
{{- $root := .root }}
{{- $role := .role }}
{{- $v := $root.Values }}
{{- $values := include "paddle.values" . | fromJson }}
{{- $view := dict "Values" $values "Release" $root.Release "Chart" $root.Chart "Subcharts" $root.Subcharts }}
{{- $worker := include "common.worker" (dict "root" $view) | fromJson }}
{{- $isServer := eq $role "server" }}
{{- $collocated := include "paddle.isCollocated" $root }}
{{- $containers := ternary (list "server") (ternary (list "trainer" "server") (list "trainer") (not (empty $collocated))) $isServer }}
{{- $first := list }}
{{- if $collocated }}{{ $first = append $first (include "paddle.container" (dict "root" $root "role" "server" "worker" $worker "view" $view)) }}{{ end }}
{{- $first = append $first (include "common.verify.container" (dict "root" $view)) }}
{{- $first = append $first (include "common.staging.container" (dict "root" $view)) -}}
completionMode: Indexed
backoffLimitPerIndex: {{ int64 $v.backoffLimitPerIndex }}
podReplacementPolicy: Failed
podFailurePolicy:
  rules:
    # A drain, a preemption or a lost node is not the pod's fault.
    - action: Ignore
      onPodConditions:
        - {type: DisruptionTarget, status: "True"}
    # The exit codes which say that no other pod would do better (docs/paddle.md).
    {{- range $each := $containers }}
    - action: FailJob
      onExitCodes: {containerName: {{ ternary "pserver" "trainer" (eq $each "server") }}, operator: In, values: [64, 70, 78]}
    {{- end }}
    {{- include "common.datasetFailures" (dict "root" $view) | nindent 4 }}
template:
  metadata:
    labels:
      {{- include "common.selectorLabels" (dict "root" $root "component" (ternary "pserver" "trainer" $isServer)) | nindent 6 }}
      {{- with $v.podLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with $v.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    restartPolicy: Never
    subdomain: {{ ternary (include "paddle.serverService" $root) (include "common.fullname" (dict "root" $root)) $isServer }}
    terminationGracePeriodSeconds: {{ int64 $v.terminationGracePeriodSeconds }}
    automountServiceAccountToken: false
    enableServiceLinks: false
    serviceAccountName: {{ include "common.serviceAccountName" (dict "root" $root) }}
    {{- include "common.imagePullSecrets" (dict "root" $root) | nindent 4 }}
    securityContext:
      {{- toYaml $v.podSecurityContext | nindent 6 }}
    {{- if $isServer }}
    {{- with $values.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    tolerations:
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
      {{- with $values.tolerations }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- else }}
    {{- include "common.workerNodeSelector" (dict "root" $view "worker" $worker) | nindent 4 }}
    {{- include "common.workerTolerations" (dict "root" $view "worker" $worker) | nindent 4 }}
    {{- end }}
    {{- include "common.scheduling" (dict "root" $view) | nindent 4 }}
    {{- with compact $first }}
    initContainers:
      {{- join "\n" . | nindent 6 }}
    {{- end }}
    containers:
      {{- include "paddle.container" (dict "root" $root "role" $role "worker" $worker "view" $view) | nindent 6 }}
    volumes:
      - name: shm
        emptyDir: {medium: Memory, sizeLimit: {{ ternary "64Mi" $worker.shm $isServer }}}
      - name: settings
        configMap: {name: {{ include "paddle.settings" $root }}}
      {{- include "common.runtimeVolume" (dict "root" $root) | nindent 6 }}
      {{- if include "paddle.scriptSource" $root }}
      - name: script
        configMap: {name: {{ include "paddle.scriptName" $root }}}
      {{- end }}
      {{- include "common.claimVolumes" (dict "root" $view) | nindent 6 }}
      {{- include "common.staging.volumes" (dict "root" $view) | nindent 6 }}
      {{- with $v.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end }}

{{/*
Arguments: root, role.
*/}}
{{- define "paddle.immutableParts" -}}
{{- $parts := include "common.immutable.jobParts" (dict "spec" (include "paddle.run" . | fromYaml)) | fromJson }}
{{- toJson (set $parts "number of pservers" (include "paddle.servers" .root)) }}
{{- end }}

{{/*
A role's Job.
Arguments: root, role, name, count.
*/}}
{{- define "paddle.job" -}}
{{- $v := .root.Values -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "common.labels" (dict "root" .root "component" (ternary "pserver" "trainer" (eq .role "server"))) | nindent 4 }}
    {{- with $v.queueName }}
    kueue.x-k8s.io/queue-name: {{ . }}
    {{- end }}
  annotations:
    bireme.dev/immutable: {{ include "common.immutable.digests" (dict "parts" (include "paddle.immutableParts" . | fromJson)) | quote }}
spec:
  {{- /* What an upgrade changes in place. */}}
  completions: {{ int64 .count }}
  parallelism: {{ int64 .count }}
  {{- if not (kindIs "invalid" $v.suspend) }}
  suspend: {{ $v.suspend }}
  {{- end }}
  {{- range $key := list "ttlSecondsAfterFinished" "activeDeadlineSeconds" }}
  {{- if not (kindIs "invalid" (index $v $key)) }}
  {{ $key }}: {{ index $v $key | int64 }}
  {{- end }}
  {{- end }}
  {{- /* What it doesn't: a change here needs a new run. */}}
  {{- include "paddle.run" . | nindent 2 }}
{{- end }}
