{{/*
The template of a pod: {metadata, spec}.
*/}}
{{- define "torch-elastic.pod" -}}
{{- $worker := include "training.worker" (dict "root" .) | fromJson }}
{{- $etcd := include "torch-elastic.etcd" . | fromJson }}
{{- $script := include "torch-elastic.script" . }}
{{- $container := include "training.container" (dict "root" . "name" "trainer" "script" $script "shm" $worker.shm
    "command" (.Values.launch.command | default (include "torch-elastic.entryPoint" . | fromJsonArray))
    "arguments" (include "training.scriptArguments" (dict "root" . "program" (ternary "" (include "training.program" (dict "root" . "script" $script)) (eq .Values.launch.launcher "node"))) | fromJsonArray)
    "fixed" (include "torch-elastic.env" (dict "root" . "worker" $worker) | fromYamlArray)
    "derived" (include "training.podEnv" (dict "root" . "worker" $worker) | fromJson)
    "ports" (include "torch-elastic.ports" . | fromYamlArray)
    "resources" (include "training.workerResources" (dict "root" . "worker" $worker))
    "mounts" (printf "%s\n%s\n%s" (include "runtime.etcdTls.mount" $etcd) (include "torch-elastic.workers.mount" .) (include "torch-elastic.topology.mount" .))) }}
{{- include "training.pod" (dict "root" . "component" "worker" "runtime" "worker" "script" $script "shm" $worker.shm
    "containers" $container "worker" $worker
    "placement" (include "training.workerPlacement" (dict "root" . "worker" $worker))
    "initContainers" (include "torch-elastic.topology.container" .)
    "volumes" (printf "%s\n%s\n%s" (include "runtime.etcdTls.volume" $etcd) (include "torch-elastic.workers.volume" .) (include "torch-elastic.topology.volumes" .))
    "subdomain" (include "common.fullname" (dict "root" .))) }}
{{- end }}
