{{/*
The template of a role's pods: {metadata, spec}.
Arguments: root, role (server or trainer).
*/}}
{{- define "paddle.pod" -}}
{{- $root := .root }}
{{- include "paddle.view" . }}
{{- $view := index $root.Views .role }}
{{- $worker := $view.Facts.worker }}
{{- $isServer := eq .role "server" }}
{{- $component := ternary "pserver" "trainer" $isServer }}
{{- /* Pservers run on any instance type. */}}
{{- $placed := ternary (dict "type" "" "accelerators" 0) $worker $isServer }}
{{- $sidecar := "" }}
{{- if and (not $isServer) (include "paddle.isCollocated" $root) }}
{{- $sidecar = include "paddle.container" (dict "root" $root "view" $view "role" "server" "worker" $worker) }}
{{- end }}
{{- $wait := "" }}
{{- if and (not $isServer) $root.Values.data.prep.enabled $root.Values.data.staging.claimName }}
{{- $wait = include "paddle.wait" (dict "root" $view) }}
{{- end }}
{{- include "training.pod" (dict "root" $view "component" $component "runtime" "trainer"
    "script" (include "paddle.script" $root)
    "shm" (ternary "64Mi" $worker.shm $isServer)
    "initContainers" (compact (list $sidecar $wait) | join "\n")
    "containers" (include "paddle.container" (dict "root" $root "view" $view "role" .role "worker" $worker))
    "worker" (ternary dict $worker $isServer)
    "placement" (include "training.workerPlacement" (dict "root" $view "worker" $placed "components" (list "pserver" "trainer")))
    "volumes" (include "paddle.settingsVolume" $root)
    "group" (include "paddle.group" $root | int64)
    "subdomain" (ternary (include "paddle.serverService" $root) (include "common.fullname" (dict "root" $root)) $isServer)) }}
{{- end }}

{{/*
An init container that waits for the data that the release's own Job writes, before it is staged.
Arguments: root (with the values of the pod's role).
*/}}
{{- define "paddle.wait" -}}
{{- $v := .root.Values }}
{{- $list := printf "%s/data/%s" (include "paddle.folder" .root) $v.data.prep.list }}
{{- $loop := `until [ -e "$0" ]; do [ "$1" -gt 0 ] || { echo "$0 does not exist" >&2; exit 75; }; set -- $(($1 - 1)); sleep 1; done` }}
{{- include "training.ownContainers" (dict "root" .root "fields" dict "containers" (list (dict "name" "data"
    "command" (list "sh" "-c" ($loop | replace "$" "$$") $list (printf "%d" (int64 $v.launch.waitSeconds)))
    "resources" $v.pod.helperResources
    "volumeMounts" (list (dict "name" "claim-0" "mountPath" $v.data.jobPath "readOnly" true))))) }}
{{- end }}

{{- define "paddle.settingsVolume" -}}
- name: settings
  configMap: {name: {{ include "paddle.settings" . | quote }}}
{{- end }}

{{/*
The container of a role. A collocated pserver is a sidecar: if it fails, it restarts beside its trainer, and if the
trainer fails, the whole pod is replaced. A pod of two ordinary containers would stay while one of them runs.
Arguments: root, view (root with the values of the pod's role), role, worker (see training.facts).
*/}}
{{- define "paddle.container" -}}
{{- $isServer := eq .role "server" }}
{{- $values := deepCopy .view.Values }}
{{- if $isServer }}
{{- $_ := set $values.data.staging "claimName" "" }}
{{- $_ := set $values.pod "ports" list }}
{{- end }}
{{- $program := ternary (ternary "server" "trainer" $isServer) "collective" (not (empty (include "paddle.hasServers" .root))) }}
{{- $script := include "paddle.script" .root }}
{{- $path := include "training.program" (dict "root" .root "script" $script) }}
{{- $derived := dict "FLAGS_enable_pir_api" "0" }}
{{- include "training.podEnv" (dict "root" .view "worker" .worker "env" $derived) }}
{{- include "training.container" (dict "root" (set (omit .view "Values") "Values" $values)
    "name" (ternary "pserver" "trainer" $isServer) "script" $script "shm" .worker.shm
    "command" ($values.launch.command | default (list $values.launch.python "-m" "bireme_runtime.paddle.supervisor" $program "--"))
    "arguments" (concat (compact (list $path)) .view.Facts.arguments)
    "fixed" (include "paddle.env" . | fromYamlArray)
    "derived" $derived
    "resources" (ternary (include "paddle.serverResources" .root) (include "training.workerResources" (dict "root" .view "worker" .worker)) $isServer)
    "mounts" "- {name: settings, mountPath: /bireme/settings, readOnly: true}"
    "envFrom" (list (dict "configMapRef" (dict "name" (include "paddle.settings" .root))))
    "ports" (ternary (include "paddle.serverPorts" .root) "" $isServer)
    "fields" (include "paddle.containerFields" .)) }}
{{- end }}

{{- define "paddle.serverResources" -}}
{{- with .Values.paddle.pservers.resources -}}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "paddle.serverPorts" -}}
{{- $v := .Values }}
{{- range $number := until (int (add $v.paddle.pservers.portsNum $v.paddle.pservers.portsNumForSparse)) }}
{{- $port := add (int64 $v.paddle.pservers.port) $number }}
- {name: jobport{{ $number }}, containerPort: {{ $port }}{{ if $v.paddle.pservers.hostPorts }}, hostPort: {{ $port }}{{ end }}}
{{- end }}
- {name: control, containerPort: {{ int64 $v.paddle.controlPort }}}
{{- end }}

{{/*
Arguments: root, role.
*/}}
{{- define "paddle.containerFields" -}}
{{- if eq .role "server" }}
{{- if include "paddle.isCollocated" .root }}
restartPolicy: Always
{{- end }}
# The port opens when the pserver has its part of the parameters.
readinessProbe:
  tcpSocket: {port: jobport0}
  periodSeconds: 3
  failureThreshold: 1
{{- end }}
{{- end }}
