{{/*
The facts of the instance type as JSON: those of files/instances/TYPE.yaml, and over them what the values under instance
say. On HyperPod a node's type is ml.TYPE. 0 and "" say nothing there, so `--set instance.type=TYPE` is enough for a known type.
The key architecture (arm64 or amd64) is there if it is known. Templates read the result as Facts.instance (training.facts).
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
One fact of an instance type whatever the values say, as a whole number; 0 if it is unknown.
Arguments: root, type (may be empty), key.
*/}}
{{- define "training.knownFact" -}}
{{- $type := .type | trimPrefix "ml." }}
{{- $known := .root.Subcharts.training.Files.Get (printf "files/instances/%s.yaml" $type) | fromYaml }}
{{- dig "instance" (required "training.knownFact needs key" .key) 0 $known | int64 }}
{{- end }}

{{/*
What one worker pod gets, as JSON. Pods, environments and rules read it as Facts.worker (training.facts).

  type          instance type, empty if unknown
  whole         accelerators of the node
  accelerators  those of the worker
  resource      their name in Kubernetes
  share         the worker's part of the node, 0 to 1
  maxEfa, efa   EFA interfaces of the node and of the worker
  hugePages     quantity
  cpu, memory   quantities, empty if unknown
  memoryMiB     the same memory as a number
  shm           size of /dev/shm
  processes     to start on the worker

A worker with some of a node's accelerators gets the same share of the rest. With all of them, or with none, it gets the
whole node less the reserve.
Arguments: root (values accelerators, efa, launch, mpi, pod, resources), instance (the result of training.instance).
*/}}
{{- define "training.worker" -}}
{{- $v := (required "training.worker needs root" .root).Values }}
{{- $instance := required "training.worker needs instance" .instance }}
{{- $device := $instance.accelerator }}
{{- $whole := $device.count | default 0 | int64 }}
{{- $count := $whole }}
{{- if not (kindIs "invalid" $v.accelerators) }}{{ $count = int64 $v.accelerators }}{{ end }}
{{- $share := 1.0 }}
{{- if and (gt $count 0) (lt $count $whole) }}{{ $share = divf $count $whole }}{{ end }}
{{- $cores := mul $count ($device.cores | default 1) }}
{{- $worker := dict
    "type" ($instance.type | default "")
    "whole" $whole
    "accelerators" $count
    "resource" ($device.resource | default "nvidia.com/gpu")
    "share" $share
    "maxEfa" ($instance.efa | default 0 | int64)
    "hugePages" $v.pod.hugePages
    "cpu" ""
    "processes" (coalesce (default dict $v.mpi).slots $v.launch.processesPerWorker (max $cores 1) | int64) }}
{{- $given := dict "root" .root "instance" $instance "worker" $worker }}
{{- $_ := set $worker "efa" (include "training.worker.efa" $given | int64) }}
{{- $memoryMiB := include "training.worker.memoryMiB" $given | int64 }}
{{- $memory := "" }}
{{- if $worker.type }}
{{- $_ := set $worker "cpu" (printf "%sm" (include "training.worker.millicores" $given)) }}
{{- $memory = printf "%dMi" $memoryMiB }}
{{- end }}
{{- $_ := set $worker "memoryMiB" $memoryMiB }}
{{- $_ := set $worker "memory" (dig "limits" "memory" "" $v.resources | default $memory) }}
{{- $half := div $memoryMiB 2 | printf "%dMi" }}
{{- $_ := set $worker "shm" ($v.pod.shm.size | default (ternary $half "1Gi" (gt $memoryMiB 1))) }}
{{- toJson $worker }}
{{- end }}

{{/*
The EFA interfaces of a worker: those that the values name, or its share of the node's. Nodes of G types mostly have no
interface for EFA, and it gains them little: there a job asks for it.
Arguments: root (value efa), worker (type, accelerators, maxEfa, share).
*/}}
{{- define "training.worker.efa" -}}
{{- $asked := .root.Values.efa }}
{{- $isG := regexMatch "^(ml[.])?gr?[0-9]" .worker.type }}
{{- if not (or (eq (toString $asked) "all") (and (kindIs "invalid" $asked) (not $isG))) }}
{{- int64 $asked }}
{{- else if .worker.accelerators }}
{{- mulf .worker.maxEfa .worker.share | floor | int64 }}
{{- else }}0
{{- end }}
{{- end }}

{{/*
The CPU of a worker in thousandths: its share of the node's less the reserve.
Arguments: root (value pod.reserve), instance, worker (share).
*/}}
{{- define "training.worker.millicores" -}}
{{- $free := subf (.instance.vcpu | default 0 | float64) .root.Values.pod.reserve.cpu }}
{{- mulf $free .worker.share 1000 | floor | int64 }}
{{- end }}

{{/*
The memory of a worker in MiB: that of resources.limits, or its share of the node's less the reserve and the huge pages.
These are the worker's own, or those that nodes with EFA reserve at boot if these are more.
Arguments: root (values pod, resources), instance, worker (type, maxEfa, share).
*/}}
{{- define "training.worker.memoryMiB" -}}
{{- $pod := .root.Values.pod }}
{{- with dig "limits" "memory" "" .root.Values.resources }}
{{- include "common.MiB" (dict "quantity" .) }}
{{- else }}
{{- if .worker.type }}
{{- $hugeMiB := include "common.MiB" (dict "quantity" ($pod.hugePages | default "0Mi")) | int64 }}
{{- if .worker.maxEfa }}{{ $hugeMiB = max $hugeMiB (int64 $pod.reserve.hugePagesMiB) }}{{ end }}
{{- $free := subf (.instance.allocatableMemoryMiB | default 0 | float64) $pod.reserve.memoryMiB $hugeMiB }}
{{- mulf $free .worker.share | floor | int64 }}
{{- else }}0
{{- end }}
{{- end }}
{{- end }}

{{/*
The resources of a worker's container. There is no CPU limit: it would only slow data loaders down on a node that runs
no other worker. The values under resources win.
Arguments: root, worker (see training.facts).
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
{{- $staging := $root.Values.data.staging }}
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
nodes that are healthy (docs.aws.amazon.com/sagemaker, sagemaker-hyperpod-eks-resiliency-node-labels). A pod that runs on
any type needs Linux and the architecture of the workers' image.
Arguments: root, worker.
*/}}
{{- define "training.workerNodeSelector" -}}
{{- $worker := required "training.workerNodeSelector needs worker" .worker }}
{{- $own := dict }}
{{- if $worker.type }}
{{- $own = dict "node.kubernetes.io/instance-type" $worker.type }}
{{- else }}
{{- with include "training.architecture" . }}{{ $own = dict "kubernetes.io/arch" . }}{{ end }}
{{- end }}
{{- if hasPrefix "ml." $worker.type }}{{ $_ := set $own "sagemaker.amazonaws.com/node-health-status" "Schedulable" }}{{ end }}
{{- include "training.placement.labels" (dict "root" .root "worker" $worker "labels" $own) }}
{{- $selector := mergeOverwrite $own (deepCopy (required "training.workerNodeSelector needs root" .root).Values.nodeSelector) }}
{{- if not (hasKey $selector "node.kubernetes.io/instance-type") }}{{ $selector = merge $selector (dict "kubernetes.io/os" "linux") }}{{ end }}
nodeSelector:
  {{- toYaml $selector | nindent 2 }}
{{- end }}

{{/*
The label kubernetes.io/arch of nodes for a pod that runs the workers' image and needs no accelerator; empty for any.
Arguments: root (values instance).
*/}}
{{- define "training.architecture" -}}
{{- $root := required "training.architecture needs root" .root }}
{{- include "training.facts" (dict "root" $root) }}
{{- $root.Facts.instance.architecture | default "" }}
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
{{- $launch := (required "training.devices needs root" .root).Values.launch }}
{{- if and .worker (include "training.hasRuntime" .) (not (or $launch.setup $launch.command)) }}{{ include "training.efaEnv" . }}{{ end }}
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
Adds network settings for the instance family to an environment {name: value}. Prints nothing. Sources: the EFA notes of
awslabs/awsome-distributed-ai and aws-do-eks issue 54. NCCL's plugin for EFA has its name from the image: the runtime looks for it. Settings that current versions of libfabric and NCCL choose
correctly (provider, protocol, device RDMA, fork safety) are left to them.
Arguments: worker, env (the dict to fill).
*/}}
{{- define "training.networkEnv" -}}
{{- $worker := required "training.networkEnv needs worker" .worker }}
{{- $env := required "training.networkEnv needs env" .env }}
{{- if and (gt (int64 $worker.accelerators) 0) (eq $worker.resource "nvidia.com/gpu") }}
{{- $_ := set $env "NCCL_SOCKET_IFNAME" "^lo,docker,veth,pod-id-link" }}
{{- end }}
{{- if and (gt (int64 $worker.accelerators) 1) (regexMatch "^(ml[.])?g[56]" $worker.type) }}
{{- $_ := set $env "NCCL_SHM_USE_CUDA_MEMCPY" "1" }}
{{- end }}
{{- if and (gt (int64 $worker.efa) 0) (not $worker.hugePages) }}
{{- $_ := set $env "FI_EFA_USE_HUGE_PAGE" "0" }}
{{- end }}
{{- end }}
