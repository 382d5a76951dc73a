{{/*
The template of a pod: {metadata, spec}.
*/}}
{{- define "torch-elastic.pod" -}}
{{- include "torch-elastic.facts" . }}
{{- $worker := .Facts.worker }}
{{- $etcd := .Facts.etcd }}
{{- $script := include "torch-elastic.script" . }}
{{- $program := include "training.program" (dict "root" . "script" $script) }}
{{- if eq .Values.launch.launcher "node" }}{{ $program = "" }}{{ end }}
{{- $derived := dict }}
{{- include "training.podEnv" (dict "root" . "worker" $worker "env" $derived) }}
{{- $container := include "training.container" (dict "root" . "name" "trainer" "script" $script "shm" $worker.shm
    "command" (.Values.launch.command | default (include "torch-elastic.entryPoint" . | fromJsonArray))
    "arguments" (concat (compact (list $program)) .Facts.arguments)
    "fixed" (include "torch-elastic.env" (dict "root" . "worker" $worker) | fromYamlArray)
    "derived" $derived
    "ports" (include "torch-elastic.ports" .)
    "resources" (include "training.workerResources" (dict "root" . "worker" $worker))
    "mounts" (printf "%s\n%s\n%s" (include "runtime.etcdTls.mount" $etcd) (include "torch-elastic.workers.mount" .) (include "torch-elastic.topology.mount" .))) }}
{{- include "training.pod" (dict "root" . "component" "worker" "runtime" "worker" "script" $script "shm" $worker.shm
    "containers" $container "worker" $worker
    "placement" (include "training.workerPlacement" (dict "root" . "worker" $worker))
    "initContainers" (include "torch-elastic.topology.container" .)
    "volumes" (printf "%s\n%s\n%s" (include "runtime.etcdTls.volume" $etcd) (include "torch-elastic.workers.volume" .) (include "torch-elastic.topology.volumes" .))
    "subdomain" (include "common.fullname" (dict "root" .))) }}
{{- end }}
