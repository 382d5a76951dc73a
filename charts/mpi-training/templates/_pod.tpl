{{/*
The template of a pod: {metadata, spec}.
Arguments: root, role (launcher or worker of an MPIJob; "" in an Indexed Job, whose index 0 is the launcher).
*/}}
{{- define "mpi-training.pod" -}}
{{- include "common.once" (dict "root" .root "template" "mpi-training.pod.text" "key" .role "arguments" .) }}
{{- end }}
{{- define "mpi-training.pod.text" -}}
{{- if eq .role "launcher" }}
{{- include "mpi-training.launcherPod" . }}
{{- else }}
{{- include "mpi-training.workerPod" . }}
{{- end }}
{{- end }}

{{/*
The pod of a worker, and of any index of an Indexed Job: it has the devices and serves ssh.
Arguments: root, role (worker, or "" in an Indexed Job).
*/}}
{{- define "mpi-training.workerPod" -}}
{{- $values := deepCopy .root.Values }}
{{- /* An MPIJob's launcher verifies datasets, because its failure fails the job; workers restart without end. */}}
{{- if .role }}{{ $_ := set $values.data.verify "paths" list }}{{ end }}
{{- $view := set (omit .root "Values" "Facts") "Values" $values }}
{{- include "training.facts" (dict "root" $view) }}
{{- $worker := $view.Facts.worker }}
{{- $script := include "mpi-training.script" .root }}
{{- $subdomain := include "common.fullname" (dict "root" .root) }}
{{- if .role }}{{ $subdomain = "" }}{{ end }}
{{- $container := include "mpi-training.container" (dict "root" .root "view" $view "role" .role
    "shm" $worker.shm
    "resources" (include "training.workerResources" (dict "root" $view "worker" $worker))
    "ports" (include "mpi-training.ports" .root)
    "fields" (include "mpi-training.sshd" .root)) }}
{{- include "training.pod" (dict "root" $view "component" "worker" "runtime" "worker" "script" $script
    "containers" $container
    "shm" $worker.shm
    "worker" $worker
    "placement" (include "training.workerPlacement" (dict "root" $view "worker" $worker))
    "volumes" (include "mpi-training.volumes" .)
    "subdomain" $subdomain) }}
{{- end }}

{{/*
The pod of an MPIJob's launcher: it runs mpirun, without devices, ports and sshd.
Arguments: root, role (launcher).
*/}}
{{- define "mpi-training.launcherPod" -}}
{{- $values := deepCopy .root.Values }}
{{- include "mpi-training.launcherValues" (dict "values" $values) }}
{{- $view := set (omit .root "Values" "Facts") "Values" $values }}
{{- include "training.facts" (dict "root" $view) }}
{{- $script := include "mpi-training.script" .root }}
{{- $container := include "mpi-training.container" (dict "root" .root "view" $view "role" .role
    "shm" ""
    "resources" (toYaml (dict "resources" $values.mpi.launcher.resources))
    "ports" ""
    "fields" "") }}
{{- include "training.pod" (dict "root" $view "component" "launcher" "runtime" "worker" "script" $script
    "containers" $container
    "shm" ""
    "worker" dict
    "placement" (include "mpi-training.launcherPlacement" .root)
    "volumes" (include "mpi-training.volumes" .)
    "subdomain" "") }}
{{- end }}

{{/*
The container of either pod.
Arguments: root, view (the root with the values and Facts of the pod), role, shm, resources, ports and fields (as for
training.container).
*/}}
{{- define "mpi-training.container" -}}
{{- $worker := .view.Facts.worker }}
{{- $derived := dict "PYTHONPATH" "/bireme/runtime" "PYTHONUNBUFFERED" "1" }}
{{- include "training.networkEnv" (dict "worker" $worker "env" $derived) }}
{{- include "training.container" (dict "root" .view "name" "trainer"
    "script" (include "mpi-training.script" .root)
    "command" (include "mpi-training.entryPoint" .root | fromJsonArray)
    "arguments" (include "mpi-training.arguments" (dict "root" .root "worker" $worker) | fromJsonArray)
    "fixed" (include "mpi-training.env" (dict "root" .root "worker" $worker "role" .role) | fromYamlArray)
    "derived" $derived
    "shm" .shm
    "resources" .resources
    "ports" .ports
    "mounts" (include "mpi-training.mounts" (dict "role" .role))
    "fields" .fields) }}
{{- end }}

{{/*
Makes a copy of the values those of the launcher. What `mpi.launcher` names is its own: maps over those of the job, the
rest in their place. A null takes away a key of the workers' security context. The workers stage data, because they
read it, and have the further containers, devices and ports. Prints nothing.
Arguments: values (the copy).
*/}}
{{- define "mpi-training.launcherValues" -}}
{{- $v := .values }}
{{- $own := $v.mpi.launcher }}
{{- $_ := set $v.data.staging "claimName" "" }}
{{- range $key := list "sidecars" "resourceClaims" "ports" }}{{ $_ := set $v.pod $key list }}{{ end }}
{{- $_ := set $v.pod "resourceClaimTemplates" dict }}
{{- $_ := set $v.pod "extraEnv" (concat $v.pod.extraEnv $own.extraEnv) }}
{{- $_ := set $v.pod "initContainers" $own.initContainers }}
{{- if $own.image.repository }}{{ $_ := set $v.image "digest" "" }}{{ end }}
{{- range $key := list "env" "image" "podLabels" "podAnnotations" "securityContext" }}
{{- $_ := set $v $key (mergeOverwrite (index $v $key) (index $own $key)) }}
{{- end }}
{{- range $holder := list $v.securityContext (default dict $v.securityContext.capabilities) }}
{{- range $key, $value := $holder }}{{ if kindIs "invalid" $value }}{{ $_ := unset $holder $key }}{{ end }}{{ end }}
{{- end }}
{{- range $key := list "extraVolumes" "extraVolumeMounts" "hostNetwork" }}
{{- if not (kindIs "invalid" (index $own $key)) }}{{ $_ := set $v.pod $key (index $own $key) }}{{ end }}
{{- end }}
{{- end }}

{{/*
The scheduling fields of the launcher. It needs no accelerator, only nodes for which its image is built.
*/}}
{{- define "mpi-training.launcherPlacement" -}}
{{- $v := .Values }}
{{- $selector := merge (deepCopy $v.mpi.launcher.nodeSelector) (dict "kubernetes.io/os" "linux") }}
{{- if and (not $v.mpi.launcher.image.repository) (not (hasKey $selector "kubernetes.io/arch")) }}
{{- with include "training.architecture" (dict "root" .) }}{{ $_ := set $selector "kubernetes.io/arch" . }}{{ end }}
{{- end }}
{{- $fields := dict
    "nodeSelector" $selector
    "tolerations" (concat $v.tolerations $v.mpi.launcher.tolerations)
    "affinity" $v.mpi.launcher.affinity
    "priorityClassName" $v.placement.priorityClassName
    "schedulerName" $v.placement.schedulerName }}
{{- range $key, $value := $fields }}
{{- with $value }}
{{ toYaml (dict $key .) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "mpi-training.ports" -}}
- {name: ssh, containerPort: {{ int64 .Values.mpi.ssh.port }}}
{{- end }}

{{- define "mpi-training.sshd" -}}
# The pod is Ready when sshd answers. This is a startup probe, because each probe is an interrupted login for sshd.
startupProbe:
  tcpSocket: {port: ssh}
  periodSeconds: 1
  failureThreshold: {{ int64 .Values.launch.waitSeconds }}
{{- end }}

{{- define "mpi-training.mounts" -}}
- {name: mpi, mountPath: /bireme/mpi}
{{- if not .role }}
# mpi-operator has the host file there, and programs look for it.
- {name: mpi, mountPath: /etc/mpi, readOnly: true}
- {name: ssh, mountPath: /bireme/ssh, readOnly: true}
{{- end }}
{{- end }}

{{/*
The folder for MPI's files, and the ssh key; for an MPIJob the operator mounts the key. The Secret is optional, so that
the pod starts without it and the entry point can say what is missing.
Arguments: root, role.
*/}}
{{- define "mpi-training.volumes" -}}
- name: mpi
  emptyDir: {medium: Memory, sizeLimit: 8Mi}
{{- if not .role }}
- name: ssh
  secret:
    secretName: {{ include "mpi-training.sshSecret" .root | quote }}
    optional: true
    defaultMode: 0440
    items:
      - {key: ssh-privatekey, path: id_rsa}
{{- end }}
{{- end }}
