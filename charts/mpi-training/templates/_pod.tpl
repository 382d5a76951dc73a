{{/*
The pods: {metadata, spec}. All hold the same program; who runs it says the role, or the index in an Indexed Job.
Arguments: root, role ("", launcher or worker).
*/}}
{{- define "mpi-training.pod" -}}
{{- $root := .root }}
{{- $v := $root.Values }}
{{- $worker := include "common.worker" (dict "root" $root) | fromJson }}
{{- $script := include "mpi-training.scriptSource" $root }}
{{- $launches := eq .role "launcher" }}
{{- /* An MPIJob's launcher verifies, because its failure is the job's; its workers start again for ever. */}}
{{- $first := list (ternary "" (include "common.verify.container" (dict "root" $root)) (eq .role "worker")) (ternary "" (include "common.staging.container" (dict "root" $root)) $launches) -}}
metadata:
  labels:
    {{- include "common.selectorLabels" (dict "root" $root "component" (.role | default "worker")) | nindent 4 }}
    {{- with $v.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $v.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if not .role }}
  restartPolicy: Never
  subdomain: {{ include "common.fullname" (dict "root" $root) }}
  {{- end }}
  terminationGracePeriodSeconds: {{ int64 $v.terminationGracePeriodSeconds }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  serviceAccountName: {{ include "common.serviceAccountName" (dict "root" $root) }}
  {{- include "common.imagePullSecrets" (dict "root" $root) | nindent 2 }}
  securityContext:
    {{- toYaml $v.podSecurityContext | nindent 4 }}
  {{- if $launches }}
  {{- range $key, $value := dict "nodeSelector" $v.launcher.nodeSelector "tolerations" $v.tolerations "priorityClassName" $v.priorityClassName "schedulerName" $v.schedulerName }}
  {{- with $value }}
  {{- toYaml (dict $key .) | nindent 2 }}
  {{- end }}
  {{- end }}
  {{- else }}
  {{- include "common.workerNodeSelector" (dict "root" $root "worker" $worker) | nindent 2 }}
  {{- include "common.workerTolerations" (dict "root" $root "worker" $worker) | nindent 2 }}
  {{- include "common.scheduling" (dict "root" $root) | nindent 2 }}
  {{- end }}
  {{- with compact $first }}
  initContainers:
    {{- join "\n" . | nindent 4 }}
  {{- end }}
  containers:
    - name: trainer
      image: {{ include "common.image" (dict "root" $root "image" $v.image) | quote }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      command: [{{ $v.python }}, -m, bireme_runtime.mpi{{ if $v.command }}, --as-is{{ end }}, --]
      args:
        {{- range include "mpi-training.program" $root | fromJsonArray }}
        - {{ . | quote }}
        {{- end }}
      {{- include "common.env" (dict "root" $root
          "fixed" (include "mpi-training.entryEnv" (dict "root" $root "worker" $worker "role" .role) | fromYamlArray)
          "derived" (merge (include "common.networkEnv" (dict "worker" $worker) | fromJson) (dict "PYTHONUNBUFFERED" "1"))) | nindent 6 }}
      {{- if $launches }}
      resources:
        {{- toYaml $v.launcher.resources | nindent 8 }}
      {{- else }}
      {{- include "common.workerResources" (dict "root" $root "worker" $worker) | nindent 6 }}
      ports:
        - {name: ssh, containerPort: {{ int64 $v.ssh.port }}}
      # Ready means: sshd answers. Asked until it does, and not again: each question is a login that is broken off.
      startupProbe:
        tcpSocket: {port: ssh}
        periodSeconds: 1
        failureThreshold: {{ int64 $v.waitSeconds }}
      {{- end }}
      securityContext:
        {{- toYaml $v.securityContext | nindent 8 }}
      volumeMounts:
        {{- if not $launches }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
        - {name: runtime, mountPath: /bireme/runtime, readOnly: true}
        - {name: mpi, mountPath: /bireme/mpi}
        {{- if not .role }}
        - {name: ssh, mountPath: /bireme/ssh, readOnly: true}
        {{- end }}
        {{- if $script }}
        - {name: script, mountPath: /bireme/script, readOnly: true}
        {{- end }}
        {{- include "common.claimMounts" (dict "root" $root "readOnly" false) | nindent 8 }}
        {{- if not $launches }}
        {{- include "common.staging.mount" (dict "root" $root) | nindent 8 }}
        {{- end }}
        {{- with $v.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- if not $launches }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $worker.shm }}}
    {{- end }}
    {{- include "common.runtimeVolume" (dict "root" $root) | nindent 4 }}
    - name: mpi
      emptyDir: {medium: Memory, sizeLimit: 8Mi}
    {{- if not .role }}
    {{- include "mpi-training.sshVolume" $root | nindent 4 }}
    {{- end }}
    {{- if $script }}
    - name: script
      configMap: {name: {{ include "mpi-training.scriptName" $root }}}
    {{- end }}
    {{- include "common.claimVolumes" (dict "root" $root) | nindent 4 }}
    {{- if not $launches }}
    {{- include "common.staging.volumes" (dict "root" $root) | nindent 4 }}
    {{- end }}
    {{- with $v.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/*
The volume of the ssh key. Optional, because the entry point says in a sentence what is missing, and a mount just waits.
*/}}
{{- define "mpi-training.sshVolume" -}}
- name: ssh
  secret:
    secretName: {{ include "mpi-training.sshSecret" . }}
    optional: true
    defaultMode: 0440
    items:
      - {key: ssh-privatekey, path: id_rsa}
{{- end }}
