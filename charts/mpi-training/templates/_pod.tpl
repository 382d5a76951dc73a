{{/*
The template of a pod: {metadata, spec}.
Arguments: root, role (launcher or worker of an MPIJob; "" in an Indexed Job, whose index 0 is the launcher).
*/}}
{{- define "mpi-training.pod" -}}
{{- include "common.once" (dict "root" .root "template" "mpi-training.pod.text" "key" .role "arguments" .) }}
{{- end }}
{{- define "mpi-training.pod.text" -}}
{{- $view := set (omit .root "Values") "Values" (include "mpi-training.values" . | fromJson) }}
{{- $worker := include "training.worker" (dict "root" $view) | fromJson }}
{{- $script := include "mpi-training.script" .root }}
{{- $launches := eq .role "launcher" }}
{{- $shm := ternary "" $worker.shm $launches }}
{{- $container := include "training.container" (dict "root" $view "name" "trainer" "script" $script "shm" $shm
    "command" (include "mpi-training.entryPoint" .root | fromJsonArray)
    "arguments" (include "mpi-training.arguments" (dict "root" .root "worker" $worker) | fromJsonArray)
    "fixed" (include "mpi-training.env" (dict "root" .root "worker" $worker "role" .role) | fromYamlArray)
    "derived" (merge (include "training.networkEnv" (dict "worker" $worker) | fromJson) (dict "PYTHONPATH" "/bireme/runtime" "PYTHONUNBUFFERED" "1"))
    "resources" (ternary (toYaml (dict "resources" $view.Values.mpi.launcher.resources)) (include "training.workerResources" (dict "root" $view "worker" $worker)) $launches)
    "mounts" (include "mpi-training.mounts" .)
    "ports" (ternary list (include "mpi-training.ports" .root | fromYamlArray) $launches)
    "fields" (ternary "" (include "mpi-training.sshd" .root) $launches)) }}
{{- include "training.pod" (dict "root" $view "component" (.role | default "worker") "runtime" "worker" "script" $script "shm" $shm
    "containers" $container "worker" (ternary dict $worker $launches)
    "placement" (ternary (include "mpi-training.launcherPlacement" .root) (include "training.workerPlacement" (dict "root" $view "worker" $worker)) $launches)
    "volumes" (include "mpi-training.volumes" .)
    "subdomain" (ternary (include "common.fullname" (dict "root" .root)) "" (empty .role))) }}
{{- end }}

{{/*
The values for a role. In an MPIJob the launcher verifies datasets, because its failure fails the job, whereas workers
are restarted without end. The workers stage data, because they read it, and have the further containers, devices and
ports. What `launcher` names is the launcher's own: maps over those of the job, the rest in their place.
Arguments: root, role.
*/}}
{{- define "mpi-training.values" -}}
{{- $v := deepCopy .root.Values }}
{{- if eq .role "launcher" }}
{{- $_ := set $v.data.staging "claimName" "" }}
{{- range $key := list "sidecars" "resourceClaims" "ports" }}{{ $_ := set $v.pod $key list }}{{ end }}
{{- $_ := set $v.pod "resourceClaimTemplates" dict }}
{{- $_ := set $v.pod "extraEnv" (concat $v.pod.extraEnv $v.mpi.launcher.extraEnv | default list) }}
{{- $_ := set $v.pod "initContainers" $v.mpi.launcher.initContainers }}
{{- with $v.mpi.launcher.image.repository }}{{ $_ := set $v.image "digest" "" }}{{ end }}
{{- range $key := list "env" "image" "podLabels" "podAnnotations" "securityContext" }}{{ $_ := set $v $key (mergeOverwrite (index $v $key) (index $v.mpi.launcher $key)) }}{{ end }}
{{- range $key := list "extraVolumes" "extraVolumeMounts" "hostNetwork" }}
{{- if not (kindIs "invalid" (index $v.mpi.launcher $key)) }}{{ $_ := set $v.pod $key (index $v.mpi.launcher $key) }}{{ end }}
{{- end }}
{{- end }}
{{- if eq .role "worker" }}{{ $_ := set $v.data.verify "paths" list }}{{ end }}
{{- toJson $v }}
{{- end }}

{{- define "mpi-training.launcherPlacement" -}}
{{- $v := .Values }}
{{- $selector := deepCopy $v.mpi.launcher.nodeSelector }}
{{- if not $v.mpi.launcher.image.repository }}
{{- $selector = merge $selector (include "training.architecture" (dict "root" .) | fromJson) }}
{{- end }}
{{- range $key, $value := dict "nodeSelector" $selector "tolerations" (concat $v.tolerations $v.mpi.launcher.tolerations) "affinity" $v.mpi.launcher.affinity "priorityClassName" $v.placement.priorityClassName "schedulerName" $v.placement.schedulerName }}
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
