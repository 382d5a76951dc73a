{{/*
Where the workers of a training job go: zone, part of the network, capacity. The values under placement are about EKS;
nodeSelector, affinity and topologySpreadConstraints of the values come on top. docs/placement.md has the sources.
*/}}

{{/*
The zone that workers share: "same", the name of a zone, or empty for any. EFA's traffic does not leave a zone.
Arguments: root (values placement), worker (see training.facts).
*/}}
{{- define "training.placement.zone" -}}
{{- $zone := (required "training.placement.zone needs root" .root).Values.placement.zone }}
{{- if not $zone }}{{ ternary "same" "" (gt (int64 .worker.efa) 0) }}{{ else if ne $zone "any" }}{{ $zone }}{{ end }}
{{- end }}

{{/*
The label of the layer of EC2's network that the values name.
Arguments: root (values placement).
*/}}
{{- define "training.placement.networkLabel" -}}
{{- with (required "training.placement.networkLabel needs root" .root).Values.placement.networkLayer -}}
topology.k8s.aws/network-node-layer-{{ int64 . }}
{{- end }}
{{- end }}

{{/*
Adds the node labels that workers need to a node selector. Prints nothing.
Arguments: root (values placement), worker, labels (the dict to fill).
*/}}
{{- define "training.placement.labels" -}}
{{- $p := (required "training.placement.labels needs root" .root).Values.placement }}
{{- $labels := required "training.placement.labels needs labels" .labels }}
{{- $zone := include "training.placement.zone" . }}
{{- if and $zone (ne $zone "same") }}{{ $_ := set $labels "topology.kubernetes.io/zone" $zone }}{{ end }}
{{- with $p.reservationId }}{{ $_ := set $labels "karpenter.k8s.aws/capacity-reservation-id" . }}{{ end }}
{{- with $p.placementGroupId }}{{ $_ := set $labels "karpenter.k8s.aws/placement-group-id" . }}{{ end }}
{{- end }}

{{/*
The affinity of workers: that of the values, and what placement adds to it. A pod satisfies an affinity to itself, so that
the first one chooses for all. Nothing if there is none.
Arguments: root (values affinity, placement, queue), worker, components (list: those whose pods stay together).
*/}}
{{- define "training.placement.affinity" -}}
{{- $v := (required "training.placement.affinity needs root" .root).Values }}
{{- $p := $v.placement }}
{{- $affinity := deepCopy $v.affinity }}
{{- $selector := include "training.placement.selector" . | fromJson }}
{{- $network := ternary "" (include "training.placement.networkLabel" .) $v.queue.topology }}
{{- $required := list }}
{{- if eq (include "training.placement.zone" .) "same" }}
{{- $required = append $required (dict "topologyKey" "topology.kubernetes.io/zone" "labelSelector" $selector) }}
{{- end }}
{{- if and $network (eq $p.networkMode "require") }}
{{- $required = append $required (dict "topologyKey" $network "labelSelector" $selector) }}
{{- end }}
{{- $pods := $affinity.podAffinity | default dict }}
{{- if $required }}
{{- $key := "requiredDuringSchedulingIgnoredDuringExecution" }}
{{- $_ := set $pods $key (concat ((get $pods $key) | default list) $required) }}
{{- end }}
{{- if and $network (eq $p.networkMode "prefer") }}
{{- $key := "preferredDuringSchedulingIgnoredDuringExecution" }}
{{- $wish := dict "weight" 100 "podAffinityTerm" (dict "topologyKey" $network "labelSelector" $selector) }}
{{- $_ := set $pods $key (append ((get $pods $key) | default list) $wish) }}
{{- end }}
{{- if $pods }}{{ $_ := set $affinity "podAffinity" $pods }}{{ end }}
{{- with $p.capacity }}
{{- /* Nodes of Karpenter and EKS Auto Mode, or of managed node groups. */}}
{{- $group := get (dict "on-demand" "ON_DEMAND" "spot" "SPOT" "reserved" "CAPACITY_BLOCK") . }}
{{- $kinds := list
    (dict "key" "karpenter.sh/capacity-type" "operator" "In" "values" (list .))
    (dict "key" "eks.amazonaws.com/capacityType" "operator" "In" "values" (list $group)) }}
{{- $nodes := $affinity.nodeAffinity | default dict }}
{{- $key := "requiredDuringSchedulingIgnoredDuringExecution" }}
{{- $terms := list }}
{{- /* Terms are alternatives: each of ours with each of theirs. */}}
{{- range $ours := $kinds }}
{{- range $theirs := (dig $key "nodeSelectorTerms" (list dict) $nodes) }}
{{- $terms = append $terms (merge (dict "matchExpressions" (append ($theirs.matchExpressions | default list) $ours)) $theirs) }}
{{- end }}
{{- end }}
{{- $_ := set $nodes $key (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $nodes }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
A selector of the release's pods of some components, as JSON.
Arguments: root, components.
*/}}
{{- define "training.placement.selector" -}}
{{- $labels := include "common.selectorLabels" (dict "root" .root "component" (first .components)) | fromYaml }}
{{- $component := "app.kubernetes.io/component" }}
{{- if eq (len .components) 1 }}
{{- toJson (dict "matchLabels" $labels) }}
{{- else }}
{{- toJson (dict "matchLabels" (omit $labels $component) "matchExpressions" (list (dict "key" $component "operator" "In" "values" .components))) }}
{{- end }}
{{- end }}

{{/*
Topology spread constraints of workers: those of the values, and networkMode: spread. Nothing if there are none.
Arguments: root (values placement), components.
*/}}
{{- define "training.placement.spread" -}}
{{- $v := (required "training.placement.spread needs root" .root).Values }}
{{- $constraints := $v.placement.topologySpreadConstraints }}
{{- $network := include "training.placement.networkLabel" . }}
{{- if and $network (eq $v.placement.networkMode "spread") }}
{{- $constraints = append $constraints (dict "maxSkew" 1 "topologyKey" $network "whenUnsatisfiable" "ScheduleAnyway"
    "labelSelector" (include "training.placement.selector" . | fromJson)) }}
{{- end }}
{{- with $constraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Adds the annotations of the pods: whether Karpenter may take their node, and where Kueue places them. Prints nothing.
Arguments: root (values placement, queue), annotations (the dict to fill).
*/}}
{{- define "training.placement.annotations" -}}
{{- $v := (required "training.placement.annotations needs root" .root).Values }}
{{- $annotations := required "training.placement.annotations needs annotations" .annotations }}
{{- $keep := $v.placement.doNotDisrupt }}
{{- if kindIs "invalid" $keep }}{{ $keep = ne $v.placement.capacity "spot" }}{{ end }}
{{- if $keep }}{{ $_ := set $annotations "karpenter.sh/do-not-disrupt" "true" }}{{ end }}
{{- if $v.queue.topology }}
{{- $how := ternary "required" "preferred" (eq $v.placement.networkMode "require") }}
{{- $_ := set $annotations (printf "kueue.x-k8s.io/podset-%s-topology" $how) (include "training.placement.networkLabel" .) }}
{{- end }}
{{- if eq ($v.placement.gang | default "") "volcano" }}
{{- $_ := set $annotations "scheduling.k8s.io/group-name" (include "common.jobName" (dict "root" .root)) }}
{{- end }}
{{- end }}

{{/*
The group of pods of which the scheduler starts no one before it has room for so many. Its name is that of the job of this
run, because Kubernetes' own groups never change.
Arguments: root (values placement), component, count.
*/}}
{{- define "training.podGroup" -}}
{{- $root := required "training.podGroup needs root" .root }}
{{- $isVolcano := eq ($root.Values.placement.gang | default "") "volcano" }}
{{- if $root.Values.placement.gang -}}
apiVersion: {{ ternary "scheduling.volcano.sh/v1beta1" "scheduling.k8s.io/v1alpha2" $isVolcano }}
kind: PodGroup
metadata:
  name: {{ include "common.jobName" (dict "root" $root) | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" .component) | nindent 4 }}
spec:
  {{- if $isVolcano }}
  minMember: {{ int64 .count }}
  {{- with $root.Values.placement.queue }}
  queue: {{ . | quote }}
  {{- end }}
  {{- with $root.Values.placement.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- else }}
  schedulingPolicy:
    gang: {minCount: {{ int64 .count }}}
  {{- end }}
{{- end }}
{{- end }}

{{/*
Rules about placement.
Arguments: root (values placement, mpi).
*/}}
{{- define "training.rules.placement" -}}
{{- $v := (required "training.rules.placement needs root" .root).Values }}
{{- $p := $v.placement }}
{{- if and $p.queue (ne ($p.gang | default "") "volcano") (ne ((default dict $v.mpi).orchestrator | default "Job") "MPIJob") }}
placement.queue: it is a queue of Volcano's gangs; set placement.gang=volcano with it, or queue.name for a queue of Kueue
{{- end }}
{{- if and $p.reservationId $p.capacity (ne $p.capacity "reserved") }}
placement.capacity: {{ $p.capacity }} contradicts placement.reservationId, whose capacity is reserved; leave one of them out
{{- end }}
{{- end }}
