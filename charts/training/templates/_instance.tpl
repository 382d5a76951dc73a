{{/*
The facts of the instance type as JSON: those of files/instances/TYPE.yaml, and over them what the values under instance
say. On HyperPod a node's type is ml.TYPE. 0 and "" say nothing there, so `--set instance.type=TYPE` is enough for a known type.
The key architecture (arm64 or amd64) is there if it is known.
Arguments: root (values instance).
*/}}
{{- define "training.instance" -}}
{{- $root := required "training.instance needs root" .root }}
{{- $facts := dict "accelerator" dict }}
{{- $whole := 0 }}
{{- with $root.Values.instance.type }}
{{- $known := $root.Subcharts.training.Files.Get (printf "files/instances/%s.yaml" (trimPrefix "ml." .)) | fromYaml }}
{{- $facts = mergeOverwrite $facts ($known.instance | default dict) (dict "type" .) }}
{{- $whole = $facts.vcpu }}
{{- end }}
{{- range $key, $value := omit $root.Values.instance "accelerator" }}
{{- if $value }}{{ $_ := set $facts $key $value }}{{ end }}
{{- end }}
{{- if regexMatch "^(ml[.])?(g5g|p6e-)" ($facts.type | default "") }}
{{- $_ := set $facts "architecture" "arm64" }}
{{- else if $whole }}
{{- $_ := set $facts "architecture" "amd64" }}
{{- end }}
{{- /* Without threads, a node has half the vCPU of its type. Arm processors have one thread a core. */}}
{{- if and (eq (int64 $root.Values.instance.threadsPerCore) 1) (ne ($facts.architecture | default "") "arm64") }}
{{- $_ := set $facts "vcpu" (min $facts.vcpu (div ($whole | default $facts.vcpu | int64) 2)) }}
{{- end }}
{{- $_ := set $facts "accelerator" (mergeOverwrite $facts.accelerator ($root.Values.instance.accelerator | default dict)) }}
{{- toJson $facts }}
{{- end }}

{{/*
What one worker pod gets, computed from the instance type. Pods, environments and rules all use this result.

Result (JSON): type, whole (accelerators of the node), accelerators, resource, efa, maxEfa, processes,
share (0..1 of the node), cpu, memory (quantities, empty if unknown), memoryMiB, hugePages, shm.

A worker with all accelerators of a node, or with none, gets the whole node less the reserve. A worker with some of them
gets the same share of the rest. Huge pages are subtracted from the memory first: those of the worker, or those that
nodes with EFA reserve at boot if these are more.
Arguments: root (values instance, accelerators, efa, launch, mpi, pod, resources).
*/}}
{{- define "training.worker" -}}
{{- $v := (required "training.worker needs root" .root).Values }}
{{- $instance := include "training.instance" (dict "root" .root) | fromJson }}
{{- $type := $instance.type | default "" }}
{{- $accelerator := $instance.accelerator }}
{{- $whole := $accelerator.count | default 0 | int64 }}
{{- $count := ternary $whole ($v.accelerators | default 0 | int64) (kindIs "invalid" $v.accelerators) }}
{{- $partial := and (gt $count 0) (lt $count $whole) }}
{{- $share := ternary (divf $count (max $whole 1)) 1.0 $partial }}
{{- $maxEfa := $instance.efa | default 0 | int64 }}
{{- /* Nodes of G types mostly have no interface for EFA, and it gains them little: there a job asks for it. */}}
{{- $byShare := or (eq (toString $v.efa) "all") (and (kindIs "invalid" $v.efa) (not (regexMatch "^(ml[.])?gr?[0-9]" $type))) }}
{{- $efa := ternary (mulf $maxEfa $share | floor) $v.efa $byShare | int64 }}
{{- if and $byShare (eq $count 0) }}{{ $efa = 0 }}{{ end }}
{{- $hugeMiB := include "common.MiB" (dict "quantity" ($v.pod.hugePages | default "0Mi")) | int64 }}
{{- $answer := dict "type" $type "whole" $whole "accelerators" $count "efa" $efa "maxEfa" $maxEfa "share" $share
    "resource" ($accelerator.resource | default "nvidia.com/gpu") "hugePages" $v.pod.hugePages "cpu" "" "memory" "" "memoryMiB" 0 }}
{{- if $type }}
{{- $cpu := mulf (subf ($instance.vcpu | default 0 | float64) $v.pod.reserve.cpu) $share 1000 | floor | int64 }}
{{- $asideMiB := max $hugeMiB (ternary ($v.pod.reserve.hugePagesMiB | int64) 0 (gt $maxEfa 0)) }}
{{- $memory := mulf (subf ($instance.allocatableMemoryMiB | default 0 | float64) $v.pod.reserve.memoryMiB $asideMiB) $share | floor | int64 }}
{{- $_ := set $answer "cpu" (printf "%dm" $cpu) }}
{{- $_ := set $answer "memory" (printf "%dMi" $memory) }}
{{- $_ := set $answer "memoryMiB" $memory }}
{{- end }}
{{- $ownMemory := dig "limits" "memory" "" $v.resources }}
{{- if $ownMemory }}
{{- $_ := set $answer "memory" $ownMemory }}
{{- $_ := set $answer "memoryMiB" (include "common.MiB" (dict "quantity" $ownMemory) | int64) }}
{{- end }}
{{- $halfMiB := div $answer.memoryMiB 2 | int64 }}
{{- $_ := set $answer "shm" ($v.pod.shm.size | default (ternary (printf "%dMi" $halfMiB) "1Gi" (gt $halfMiB 0))) }}
{{- $_ := set $answer "processes" (coalesce (default dict $v.mpi).slots $v.launch.processesPerWorker (max (mul $count ($accelerator.cores | default 1)) 1) | int64) }}
{{- toJson $answer }}
{{- end }}

{{/*
The resources of a worker's container. There is no CPU limit: it would only slow data loaders down on a node that runs
no other worker. The values under resources win.
Arguments: root, worker (the result of training.worker).
*/}}
{{- define "training.workerResources" -}}
{{- $root := required "training.workerResources needs root" .root }}
{{- $worker := required "training.workerResources needs worker" .worker }}
{{- $devices := dict }}
{{- if gt (int64 $worker.accelerators) 0 }}{{ $_ := set $devices $worker.resource (int64 $worker.accelerators | toString) }}{{ end }}
{{- if gt (int64 $worker.efa) 0 }}{{ $_ := set $devices "vpc.amazonaws.com/efa" (int64 $worker.efa | toString) }}{{ end }}
{{- if $worker.hugePages }}{{ $_ := set $devices "hugepages-2Mi" $worker.hugePages }}{{ end }}
{{- if $worker.memory }}{{ $_ := set $devices "memory" $worker.memory }}{{ end }}
{{- $requests := deepCopy $devices }}
{{- if $worker.cpu }}{{ $_ := set $requests "cpu" $worker.cpu }}{{ end }}
{{- $staging := $root.Values.data.staging | default dict }}
{{- if $staging.claimName }}{{ $_ := set $requests "ephemeral-storage" $staging.size }}{{ end }}
{{- $resources := mergeOverwrite (dict "limits" $devices "requests" $requests) (deepCopy $root.Values.resources) }}
{{- range $name, $devices := $root.Values.pod.resourceClaimTemplates }}
{{- $_ := set $resources "claims" (append ($resources.claims | default list) (dict "name" $name)) }}
{{- end }}
{{- /* A quota on requests, or a policy that wants them, refuses containers without any. */}}
{{- if not (or $resources.limits $resources.requests $resources.claims) }}
{{- $_ := set $resources "requests" (dict "cpu" "100m" "memory" "256Mi") }}
{{- end -}}
resources:
  {{- toYaml $resources | nindent 2 }}
{{- end }}

{{/*
The node selector of a worker: its instance type, what placement adds, and the values' nodeSelector. HyperPod labels the
nodes that are healthy (docs.aws.amazon.com/sagemaker, sagemaker-hyperpod-eks-resiliency-node-labels). A pod that runs the
workers' image on any type needs their architecture.
Arguments: root, worker.
*/}}
{{- define "training.workerNodeSelector" -}}
{{- $worker := required "training.workerNodeSelector needs worker" .worker }}
{{- $own := ternary (dict "node.kubernetes.io/instance-type" $worker.type) (include "training.architecture" . | fromJson) (not (empty $worker.type)) }}
{{- if hasPrefix "ml." $worker.type }}{{ $_ := set $own "sagemaker.amazonaws.com/node-health-status" "Schedulable" }}{{ end }}
{{- $placed := include "training.placement.labels" . | fromJson }}
{{- $selector := mergeOverwrite $own $placed (deepCopy (required "training.workerNodeSelector needs root" .root).Values.nodeSelector) }}
{{- with $selector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
The node selector, as JSON, of a pod that runs the workers' image and needs no accelerator.
Arguments: root (values instance).
*/}}
{{- define "training.architecture" -}}
{{- $instance := include "training.instance" (dict "root" (required "training.architecture needs root" .root)) | fromJson }}
{{- $known := $instance.architecture | default "" }}
{{- toJson (ternary (dict "kubernetes.io/arch" $known) dict (not (empty $known))) }}
{{- end }}

{{/*
Tolerations of a worker: the taint of accelerator nodes, 30 s for nodes that stop answering, and those of the values.
Arguments: root, worker.
*/}}
{{- define "training.workerTolerations" -}}
{{- $worker := required "training.workerTolerations needs worker" .worker -}}
tolerations:
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
  {{- if gt (int64 $worker.accelerators) 0 }}
  - {key: {{ $worker.resource | quote }}, operator: Exists, effect: NoSchedule}
  {{- end }}
  {{- if gt (int64 $worker.efa) 0 }}
  - {key: vpc.amazonaws.com/efa, operator: Exists, effect: NoSchedule}
  {{- end }}
  {{- with (required "training.workerTolerations needs root" .root).Values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/*
What the runtime and the check of the job hold against what the container has, as a list of EnvVar.
Arguments: root (values efa, pod), worker.
*/}}
{{- define "training.hardwareEnv" -}}
{{- $worker := required "training.hardwareEnv needs worker" .worker }}
{{- if .root.Values.pod.checkDevices }}
{{- if gt (int64 $worker.accelerators) 0 }}
- {name: BIREME_ACCELERATORS, value: {{ $worker.resource }}}
{{- end }}
{{- if not (include "training.devices" .) }}{{ include "training.efaEnv" . }}{{ end }}
{{- end }}
{{- end }}

{{/*
The variable that has EFA looked for, as a list of EnvVar.
Arguments: root (values efa, pod), worker.
*/}}
{{- define "training.efaEnv" -}}
{{- $worker := required "training.efaEnv needs worker" .worker }}
{{- if and .root.Values.pod.checkDevices (gt (int64 $worker.efa) 0) }}
- {name: BIREME_EFA, value: {{ ternary "required" "wanted" (eq (toString .root.Values.efa) "all") }}}
{{- end }}
{{- end }}

{{/*
Not empty when an init container looks for EFA, so that what is missing stays in the pod's status. A setup may bring what
EFA needs and runs in the worker's container only: with one, the entry point looks. A command is the user's from its
first process on, and its image may have no Python.
Arguments: root (values efa, pod, launch), worker (optional: without one, nothing looks).
*/}}
{{- define "training.devices" -}}
{{- with (required "training.devices needs root" .root).Values }}
{{- if and $.worker (include "training.hasRuntime" $) (not (or .launch.setup .launch.command)) }}{{ include "training.efaEnv" $ }}{{ end }}
{{- end }}
{{- end }}

{{/*
That init container: the worker's container with another command.
Arguments: root, worker, containers (YAML; the first is the worker's).
*/}}
{{- define "training.devices.container" -}}
{{- $env := include "training.devices" . | fromYamlArray }}
{{- if $env }}
{{- $main := first (.containers | fromYamlArray) }}
{{- range $main.env }}{{ if or (eq .name "BIREME_ACCELERATORS") (not (regexMatch "^(BIREME|PET)_" .name)) }}{{ $env = append $env . }}{{ end }}{{ end }}
{{- $own := pick $main "image" "imagePullPolicy" "resources" "securityContext" "volumeMounts" }}
{{- $command := list .root.Values.launch.python "-m" "bireme_runtime.process.devices" }}
{{- toYaml (list (merge (dict "name" "devices" "command" $command "env" $env) $own)) }}
{{- end }}
{{- end }}

{{/*
Network settings for the instance family, as JSON {name: value}. Sources: the EFA notes of
awslabs/awsome-distributed-ai and aws-do-eks issue 54. NCCL's plugin for EFA has its name from the image: the runtime looks for it. Settings that current versions of libfabric and NCCL choose
correctly (provider, protocol, device RDMA, fork safety) are left to them.
Arguments: worker.
*/}}
{{- define "training.networkEnv" -}}
{{- $worker := required "training.networkEnv needs worker" .worker }}
{{- $env := dict }}
{{- if and (gt (int64 $worker.accelerators) 0) (eq $worker.resource "nvidia.com/gpu") }}
{{- $_ := set $env "NCCL_SOCKET_IFNAME" "^lo,docker,veth,pod-id-link" }}
{{- end }}
{{- if and (gt (int64 $worker.accelerators) 1) (regexMatch "^(ml[.])?g[56]" $worker.type) }}
{{- $_ := set $env "NCCL_SHM_USE_CUDA_MEMCPY" "1" }}
{{- end }}
{{- if and (gt (int64 $worker.efa) 0) (not $worker.hugePages) }}
{{- $_ := set $env "FI_EFA_USE_HUGE_PAGE" "0" }}
{{- end }}
{{- toJson $env }}
{{- end }}
