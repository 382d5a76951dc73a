{{/*
Accelerators, EFA, processes, memory, huge pages and /dev/shm of a worker fit its instance type.
Arguments: root, worker (see training.facts).
*/}}
{{- define "training.rules.worker" -}}
{{- $v := (required "training.rules.worker needs root" .root).Values }}
{{- $worker := required "training.rules.worker needs worker" .worker }}
{{- $count := int64 $worker.accelerators }}
{{- $efa := int64 $worker.efa }}
{{- include "training.facts" (dict "root" .root) }}
{{- $instance := .root.Facts.instance }}
{{- $model := $instance.accelerator.name }}
{{- if and $worker.type (not $instance.vcpu) }}
{{- $family := list }}
{{- range $file, $_ := $.root.Subcharts.training.Files.Glob "files/instances/*.yaml" }}
{{- $known := base $file | trimSuffix ".yaml" }}
{{- if eq (splitList "." $known | first) (trimPrefix "ml." $worker.type | splitList "." | first) }}{{ $family = append $family $known }}{{ end }}
{{- end }}
instance.type: {{ $worker.type }} is not a type that the chart knows{{ with $family }} (it knows {{ join ", " . }}){{ end }}; correct it, or set the facts under instance, at least vcpu, allocatableMemoryMiB and accelerator
{{- else }}
{{- /* A node may offer fewer vCPU than its type. Memory tells whether the facts are of another type. */}}
{{- range $key := list "memoryMiB" "vcpu" }}
{{- $known := include "training.knownFact" (dict "root" $.root "type" $worker.type "key" $key) | int64 }}
{{- $given := index $instance $key | int64 }}
{{- if and $known (ternary (gt $given $known) (ne $given $known) (eq $key "vcpu")) }}
instance.{{ $key }}: a {{ $worker.type }} has {{ $known }}, not {{ $given }}; leave the facts of a known type out, or name the type that they are of
{{- end }}
{{- end }}
{{- if and $worker.type (gt $count (int64 $worker.whole)) }}
accelerators: {{ $count }} is more than the {{ int64 $worker.whole }} {{ $model }} of a {{ $worker.type }}; set at most {{ int64 $worker.whole }}, or leave it out for all of them
{{- end }}
{{- if and $worker.type (gt $efa (int64 $worker.maxEfa)) }}
efa: {{ $efa }} is more than the {{ int64 $worker.maxEfa }} EFA interfaces of a {{ $worker.type }}; set at most {{ int64 $worker.maxEfa }}, or leave it out for all of them
{{- end }}
{{- if and (eq (toString $v.efa) "all") (eq $efa 0) }}
efa: this job wants EFA (efa: all), but {{ $worker.type | default "no instance type is set, and so there" }} has none for it; choose a type with EFA (values/instances), or set efa=0 to train over TCP
{{- end }}
{{- $processes := int64 $worker.processes }}
{{- $neuron := eq $worker.resource "aws.amazon.com/neuron" }}
{{- $key := ternary "mpi.slots" "launch.processesPerWorker" (hasKey $v "mpi") }}
{{- /* One rank of MPI may drive all devices of its node. */}}
{{- $drivesAll := and (eq $key "mpi.slots") (eq $processes 1) }}
{{- if and (gt $count 0) (not $neuron) (ne $processes $count) (not $drivesAll) }}
{{ $key }}: {{ $processes }} processes for {{ $count }} accelerators; each process drives one accelerator, so leave {{ $key }} out or set accelerators={{ $processes }}{{ if eq $key "mpi.slots" }}, or mpi.slots=1 for one that drives all{{ end }}
{{- end }}
{{- if and (gt $count 0) $neuron (ne (mod $processes $count) 0) (not $drivesAll) }}
{{ $key }}: {{ $processes }} processes don't spread over {{ $count }} Neuron devices; use a multiple of {{ $count }}, or leave {{ $key }} out for one on each core
{{- end }}
{{- range $device, $planned := dict $worker.resource $count "vpc.amazonaws.com/efa" $efa }}
{{- range $side := list "limits" "requests" }}
{{- $own := dig $side $device "" $v.resources | toString }}
{{- if and $own (ne $own (toString $planned)) }}
resources.{{ $side }}.{{ $device }}: {{ $own }} contradicts {{ ternary "efa" "accelerators" (eq $device "vpc.amazonaws.com/efa") }}, which gives each worker {{ $planned }}; set that key and leave this one out
{{- end }}
{{- end }}
{{- end }}
{{- $own := dig "limits" "memory" "" $v.resources }}
{{- if and $own (lt (int64 $worker.memoryMiB) 1) }}
resources.limits.memory: {{ $own }} is not an amount of memory; write e.g. 64Gi, or leave it out for what the node has
{{- else if and $worker.type (lt (int64 $worker.memoryMiB) 1) }}
pod.hugePages: {{ $v.pod.hugePages | default "none" }} and pod.reserve.memoryMiB: {{ int64 $v.pod.reserve.memoryMiB }} leave no memory of the {{ int64 $instance.allocatableMemoryMiB }} MiB that a {{ $worker.type }} offers
{{- end }}
{{- if and $worker.type (hasPrefix "-" $worker.cpu) }}
pod.reserve.cpu: {{ $v.pod.reserve.cpu }} is more than the {{ int64 $instance.vcpu }} vCPU of a {{ $worker.type }}
{{- end }}
{{- $cpu := dig "requests" "cpu" "" $v.resources }}
{{- if and $v.pod.hugePages (not (or $worker.memory $worker.cpu $cpu)) }}
pod.hugePages: {{ $v.pod.hugePages }} needs a memory or CPU request beside it; set instance (a file of values/instances) or resources.limits.memory
{{- end }}
{{- $shmMiB := include "common.MiB" (dict "quantity" $worker.shm) | int64 }}
{{- if and (gt (int64 $worker.memoryMiB) 0) (gt $shmMiB (int64 $worker.memoryMiB)) }}
pod.shm.size: {{ $worker.shm }} is more than the worker's memory, {{ $worker.memory }}, which /dev/shm is part of
{{- end }}
{{- /* A process of torch with CUDA takes more than 2 GiB of the host's memory before any data. */}}
{{- $leastMiB := mul $count 2048 }}
{{- if and $own (gt $count 0) (gt (int64 $worker.memoryMiB) 0) (lt (int64 $worker.memoryMiB) $leastMiB) }}
resources.limits.memory: {{ $own }} is too little for {{ $count }} accelerators, whose processes take 2 GiB each before any data; set at least {{ div $leastMiB 1024 }}Gi, or leave it out for what the node has
{{- end }}
{{- range $label := list "node.kubernetes.io/instance-type" "beta.kubernetes.io/instance-type" }}
{{- $selected := index $v.nodeSelector $label | default $worker.type }}
{{- /* A type that no values file is of, such as another cloud's, can only be selected. */}}
{{- if and (ne $selected $worker.type) (or $worker.type (include "training.knownFact" (dict "root" $.root "type" $selected "key" "vcpu") | int64)) }}
nodeSelector: {{ $label }} {{ $selected }} contradicts instance.type {{ $worker.type | default "(not set)" }}; choose the type with instance.type={{ $selected }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
An image of pytorch/pytorch, whose tag says its releases of torch and CUDA, has kernels for the accelerators. Sources: the
CUDA support matrix in RELEASE.md of pytorch/pytorch, and its .ci/aarch64_linux, which builds none for the T4G. Images of
Paddle are for amd64. What other images have, the agent sees when it starts.
Arguments: root (values image), worker.
*/}}
{{- define "training.rules.kernels" -}}
{{- $root := required "training.rules.kernels needs root" .root }}
{{- $image := $root.Values.image }}
{{- include "training.facts" (dict "root" $root) }}
{{- $instance := $root.Facts.instance }}
{{- $model := $instance.accelerator.name | default "" }}
{{- $isNeuron := and (eq .worker.resource "aws.amazon.com/neuron") (gt (int64 .worker.accelerators) 0) }}
{{- $isArm := eq ($instance.architecture | default "") "arm64" }}
{{- $instead := ternary
    "public.ecr.aws/neuron/pytorch-training-neuronx:2.8.0-neuronx-py311-sdk2.26.1-ubuntu22.04"
    "public.ecr.aws/deep-learning-containers/pytorch-training-arm64:2.7.0-gpu-py312-cu128-ubuntu22.04-ec2-v1.37-soci" $isNeuron }}
{{- if and (or $isNeuron $isArm) (hasSuffix "pytorch/pytorch" $image.repository) }}
image: {{ $image.repository }} has no torch for the {{ $model }} of a {{ $instance.type }}; set image.registry, image.repository and image.tag to one that has, e.g. {{ $instead }}
{{- else if and (or $isNeuron $isArm) (hasSuffix "paddlepaddle/paddle" $image.repository) }}
image: {{ $image.repository }} has no Paddle for a {{ $instance.type }}; choose a type with NVIDIA's GPUs and Intel's or AMD's processors, or set image to one of yours
{{- end }}
{{- $tag := regexFind "^[0-9.]+-cuda[0-9.]+-" $image.tag }}
{{- if and $tag (hasSuffix "pytorch/pytorch" $image.repository) (not $image.digest) }}
{{- $torch := regexFind "^[0-9]+[.][0-9]+" $tag }}
{{- $cuda := regexFind "[0-9.]+-$" $tag | trimSuffix "-" }}
{{- $isBlackwell := regexMatch "^(G?B[23]00|RTX PRO)" $model }}
{{- if and $isBlackwell (or (semverCompare "<2.7" $torch) (semverCompare "<12.8" $cuda)) }}
image.tag: {{ $image.tag }} has no kernels for the {{ $model }} of a {{ $instance.type }}, which need torch 2.7 and CUDA 12.8 or newer; set image.tag=2.9.1-cuda12.8-cudnn9-runtime
{{- end }}
{{- if and (eq $model "V100") (or (semverCompare ">=13.0" $cuda) (and (semverCompare ">=2.11" $torch) (semverCompare ">=12.8" $cuda))) }}
image.tag: {{ $image.tag }} has no kernels for the V100 of a {{ $instance.type }}, for which torch 2.10 is the last with CUDA 12.8; set image.tag=2.9.1-cuda12.8-cudnn9-runtime
{{- end }}
{{- end }}
{{- end }}

{{/*
The job has an image that stays the same on all nodes.
Arguments: root (values image).
*/}}
{{- define "training.rules.image" -}}
{{- $image := (required "training.rules.image needs root" .root).Values.image }}
{{- if not $image.repository }}
image.repository: this job comes without an image; build one with the program in it, push it, and set image.registry, image.repository and image.tag
{{- else if not (or $image.tag $image.digest) }}
image.tag: {{ $image.repository }} needs a tag or a digest; set image.tag or image.digest
{{- else if and (eq $image.tag "latest") (not $image.digest) (ne $image.pullPolicy "Always") }}
image.tag: latest moves, and a node that has an older image would run that; set image.tag to a version, or image.pullPolicy=Always
{{- end }}
{{- end }}

{{/*
The values set no variable that the chart sets itself or that breaks EFA, and none twice.
Arguments: root (values env, pod), reserved (list of {pattern, instead: what to do}), key (where env is; optional).
*/}}
{{- define "training.rules.env" -}}
{{- $v := (required "training.rules.env needs root" .root).Values }}
{{- $key := .key | default "env" }}
{{- $extra := ternary "pod.extraEnv" (replace "env" "extraEnv" $key) (eq $key "env") }}
{{- $names := keys $v.env | sortAlpha }}
{{- $seen := list }}
{{- range $v.pod.extraEnv }}
{{- if or (has .name $seen) (hasKey $v.env .name) }}
{{ $extra }}: {{ .name }} is set twice; keep it in env or once in extraEnv
{{- end }}
{{- if eq .name "PYTHONPATH" }}
{{ $extra }}: PYTHONPATH would hide the runtime of the chart; set env.PYTHONPATH, which comes after it
{{- end }}
{{- $seen = append $seen .name }}
{{- end }}
{{- $reserved := required "training.rules.env needs reserved" .reserved }}
{{- $empty := list }}
{{- range $name, $value := $v.env }}{{ if eq (toString $value) "" }}{{ $empty = append $empty $name }}{{ end }}{{ end }}
{{- range $v.pod.extraEnv }}{{ if not (or .value .valueFrom) }}{{ $empty = append $empty .name }}{{ end }}{{ end }}
{{- range $name := uniq $empty }}
{{- if regexMatch "^(NCCL|FI|OFI|EFA|RCCL)_" $name }}
{{ $key }}: {{ $name }} is set to nothing, which is a value too, and rarely the default; give it one, or leave it out
{{- end }}
{{- end }}
{{- $literal := dict }}
{{- range $name, $value := $v.env }}{{ $_ := set $literal $name (toString $value) }}{{ end }}
{{- range $v.pod.extraEnv }}{{ $_ := set $literal .name (toString (.value | default "")) }}{{ end }}
{{- range $name, $value := $literal }}
{{- if and (regexMatch "PATH$" $name) (regexMatch "\\$(\\{[A-Za-z_][A-Za-z0-9_]*\\}|[A-Za-z_])" $value) }}
{{ $key }}: {{ $name }} has {{ regexFind "\\$(\\{[A-Za-z_][A-Za-z0-9_]*\\}|[A-Za-z_][A-Za-z0-9_]*)" $value }}, which no shell replaces: Kubernetes passes it on as it is; write the whole path
{{- end }}
{{- end }}
{{- range $name := concat $names $seen | uniq }}
{{- if eq $name "RDMAV_FORK_SAFE" }}
{{ $key }}: RDMAV_FORK_SAFE breaks EFA with huge pages and is not needed on current kernels; remove it
{{- end }}
{{- range $reserved }}
{{- if regexMatch .pattern $name }}
{{ $key }}: {{ $name }} is the chart's own; {{ .instead }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
No path is mounted twice, and EFA devices are not mounted from the host. InfiniBand's, on nodes without EFA, may be.
Arguments: root (values claims, data, pod), taken (paths that the chart mounts), worker.
*/}}
{{- define "training.rules.mounts" -}}
{{- $v := (required "training.rules.mounts needs root" .root).Values }}
{{- $seen := required "training.rules.mounts needs taken" .taken }}
{{- if $v.data.staging.claimName }}{{ $seen = append $seen $v.data.staging.mountPath }}{{ end }}
{{- range concat $v.claims $v.pod.extraVolumeMounts }}
{{- if has .mountPath $seen }}
{{ ternary "claims" "pod.extraVolumeMounts" (hasKey . "claimName") }}: {{ .mountPath }} is mounted already; give it another mountPath
{{- end }}
{{- $seen = append $seen .mountPath }}
{{- end }}
{{- range $v.pod.extraVolumes }}
{{- $host := dig "hostPath" "path" "" . }}
{{- if and (hasPrefix "/dev/infiniband" $host) (or (gt (int64 $.worker.maxEfa) 0) (gt (int64 $.worker.efa) 0)) }}
pod.extraVolumes: {{ .name }} mounts {{ $host }} from the host; the EFA device plugin gives a pod its own devices, so set efa and remove the volume
{{- end }}
{{- end }}
{{- end }}

{{/*
The containers of a pod mount volumes that it has, and no two volumes have one name.
Arguments: root (values pod), pod (its spec), further (names of volumes that an operator adds; optional), prefix (of
the keys; optional).
*/}}
{{- define "training.rules.volumes" -}}
{{- $pod := required "training.rules.volumes needs pod" .pod }}
{{- $prefix := .prefix | default "pod." }}
{{- $names := .further | default list }}
{{- range $pod.volumes }}
{{- if has .name $names }}
{{ $prefix }}extraVolumes: there is a volume {{ .name }} already; give it another name
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- $keys := dict }}
{{- range $key := list "initContainers" "sidecars" }}
{{- range index $.root.Values.pod $key }}{{ $_ := set $keys .name (printf "%s.volumeMounts" $key) }}{{ end }}
{{- end }}
{{- range concat ($pod.initContainers | default list) $pod.containers }}
{{- $key := index $keys .name | default "extraVolumeMounts" }}
{{- range .volumeMounts }}
{{- if not (has .name $names) }}
{{ $prefix }}{{ $key }}: there is no volume {{ .name }}; add it to {{ $prefix }}extraVolumes, or correct the name
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The values set either script or command, what they ask for can run, and a torchrun among the words of a command starts a
process for each accelerator, where the number can be read. Arguments begin with no program that the chart starts itself.
Arguments: root (values script, launch, args, data), worker, starts (optional: {programs: a
regular expression for them, by: what runs the script, instead: the value for a command}).
*/}}
{{- define "training.rules.program" -}}
{{- $v := (required "training.rules.program needs root" .root).Values }}
{{- if and (not (include "training.hasRuntime" .)) (include "training.usesDatasets" .) }}
launch.runtime: false leaves the image's Python alone, but data.verify and data.staging run in it and need 3.9; leave them out, or launch.runtime
{{- end }}
{{- include "training.facts" (dict "root" .root) }}
{{- $arguments := .root.Facts.arguments }}
{{- if and .starts $arguments (not (or $v.script $v.launch.git.url $v.launch.command)) }}
{{- $first := index $arguments (ternary 1 0 (and (eq (first $arguments | toString) "-m") (gt (len $arguments) 1))) | toString | base }}
{{- if regexMatch (printf "^(%s)$" .starts.programs) $first }}
args: {{ $first }} is not the script that {{ .starts.by }} runs; begin with the script, or set {{ .starts.instead }}
{{- end }}
{{- end }}
{{- $words := concat $v.launch.command $arguments | join " " }}
{{- $option := regexFind "--nproc[-_]per[-_]node[= ]+[0-9]+\\b" $words }}
{{- $wanted := regexFind "[0-9]+$" $option | int64 }}
{{- /* On Neuron a model may be parallel over fewer cores. */}}
{{- $isNeuron := eq .worker.resource "aws.amazon.com/neuron" }}
{{- if and $option (gt (int64 .worker.accelerators) 0) (or (gt $wanted (int64 .worker.processes)) (and (ne $wanted (int64 .worker.processes)) (not $isNeuron))) }}
{{ ternary "launch.command" "args" (contains "nproc" (join " " $v.launch.command)) }}: {{ $option }} is not the {{ int64 .worker.processes }} processes of a worker with {{ int64 .worker.accelerators }} accelerators; write {{ int64 .worker.processes }}, or set accelerators to those that it uses
{{- end }}
{{- if and (hasSuffix ".py" (trim $v.script)) (not (contains "\n" (trim $v.script))) }}
script: it is the source, not the path of a file; give the file as --script {{ trim $v.script }} to bireme, or as --set-file script={{ trim $v.script }} to helm
{{- end }}
{{- if and $v.launch.files (not (or $v.script $arguments $v.launch.command)) }}
launch.files: nothing reads them; set script, or args that begin with one of them, e.g. [/bireme/script/{{ keys $v.launch.files | sortAlpha | first }}]
{{- end }}
{{- range $path := keys $v.launch.files | sortAlpha }}
{{- if or (eq $path "train.py") (not (regexMatch "^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$" $path)) }}
launch.files: {{ $path }} is {{ ternary "the script itself" "not a path within the folder of the script" (eq $path "train.py") }}; {{ ternary "set script" "write it with letters, digits, dots, dashes and slashes, e.g. conf/net.yaml" (eq $path "train.py") }}
{{- end }}
{{- end }}
{{- if gt (len (printf "%s%s" $v.script (toJson $v.launch.files))) 1000000 }}
launch.files: they have {{ div (len (printf "%s%s" $v.script (toJson $v.launch.files))) 1024 }} KiB, and a ConfigMap holds 1024 KiB; put the large ones on a claim or in an image
{{- end }}
{{- if and $v.script $v.launch.command }}
launch.command: it replaces the entry point, so script would not be run; set one of them
{{- end }}
{{- end }}

{{/*
"true" for a label or annotation that the charts set themselves.
Arguments: name.
*/}}
{{- define "training.isReservedName" -}}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|component|version|managed-by|part-of)|helm\\.sh/chart|kueue\\.x-k8s\\.io/(queue-name|priority-class|elastic-job|job-min-parallelism)|bireme/.*)$" .name }}true{{ end }}
{{- end }}

{{/*
Labels, annotations, containers and ports of the values do not take the names of the chart's own, and
workers can look up each other's names.
Arguments: root (values podLabels, podAnnotations, job, pod, securityContext), ports (the chart's own, a list; optional).
*/}}
{{- define "training.rules.pod" -}}
{{- $v := (required "training.rules.pod needs root" .root).Values }}
{{- range $key, $own := dict "podLabels" $v.podLabels "job.labels" $v.job.labels "podAnnotations" $v.podAnnotations "job.annotations" $v.job.annotations }}
{{- range $name := keys $own | sortAlpha }}
{{- if include "training.isReservedName" (dict "name" $name) }}
{{ $key }}: {{ $name }} is the chart's own; leave it out{{ if hasSuffix "queue-name" $name }} and set queue.name{{ else if hasSuffix "priority-class" $name }} and set queue.priorityClass{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- $seen := list "trainer" "pserver" "verify" "staging" }}
{{- range $key := list "initContainers" "sidecars" }}
{{- range index $v.pod $key }}
{{- if has .name $seen }}
pod.{{ $key }}: there is a container {{ .name }} already; give it another name
{{- end }}
{{- $seen = append $seen .name }}
{{- end }}
{{- end }}
{{- $ports := .ports | default list }}
{{- range $v.pod.ports }}
{{- $given := . }}
{{- range $ports }}
{{- if and $given.name (eq ($given.name) (.name | default "")) }}
pod.ports: there is a port {{ .name }} already; give it another name
{{- else if and (eq (int64 $given.containerPort) (int64 .containerPort)) (eq ($given.protocol | default "TCP") (.protocol | default "TCP")) }}
pod.ports: {{ int64 .containerPort }} is taken by the port {{ .name | default "before it" }}; choose another number
{{- end }}
{{- end }}
{{- $ports = append $ports $given }}
{{- end }}
{{- $security := $v.securityContext }}
{{- if and $security.privileged (kindIs "bool" $security.allowPrivilegeEscalation) (not $security.allowPrivilegeEscalation) }}
securityContext: Kubernetes refuses privileged beside allowPrivilegeEscalation=false, the chart's default; set securityContext.allowPrivilegeEscalation=true too
{{- end }}
{{- if and (eq $v.pod.dnsPolicy "None") (not $v.pod.dnsConfig.nameservers) }}
pod.dnsConfig.nameservers: dnsPolicy None leaves the pods without a name server; name that of the cluster, in which workers look up each other
{{- end }}
{{- if and (eq $v.pod.dnsPolicy "ClusterFirst") $v.pod.hostNetwork }}
pod.dnsPolicy: with hostNetwork Kubernetes takes ClusterFirst for the node's DNS, which does not know the workers; leave it out, or set ClusterFirstWithHostNet
{{- end }}
{{- end }}
