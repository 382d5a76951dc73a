{{/*
Agents: one pod on each node of some instance types. `make instances` writes the list of types,
files/instance-types.yaml, from values/instances.
*/}}

{{/*
The instance types with EFA, or those with NVIDIA GPUs, as a JSON list.
Arguments: root, hardware (efa or nvidia), extra (further types).
*/}}
{{- define "common.instanceTypes" -}}
{{- $library := (required "common.instanceTypes needs root" .root).Subcharts.common }}
{{- $table := $library.Files.Get "files/instance-types.yaml" | fromYaml }}
{{- concat (get $table (required "common.instanceTypes needs hardware" .hardware)) .extra | uniq | toJson }}
{{- end }}

{{/*
Node affinity for agents: nodes of these types. Nodes of EKS Auto Mode are excluded where Auto Mode has an agent of its
own. All expressions are in one term, because several terms are alternatives.
Arguments: types (list), autoMode (whether to include nodes of EKS Auto Mode).
*/}}
{{- define "common.agentAffinity" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - key: node.kubernetes.io/instance-type
            operator: In
            values:
              {{- toYaml (required "common.agentAffinity needs types" .types) | nindent 14 }}
          {{- if not .autoMode }}
          - {key: eks.amazonaws.com/compute-type, operator: NotIn, values: [auto]}
          {{- end }}
{{- end }}

{{/*
Tolerations of agents: the usual taints of accelerator and EFA nodes, with any effect, and those of the values.
Arguments: root (values tolerations).
*/}}
{{- define "common.agentTolerations" -}}
{{- range list "nvidia.com/gpu" "aws.amazon.com/neuron" "vpc.amazonaws.com/efa" "aws.amazon.com/efa" "CriticalAddonsOnly" }}
- {key: {{ . }}, operator: Exists}
{{- end }}
{{- with (required "common.agentTolerations needs root" .root).Values.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Rules of agents: instanceTypes does not repeat a type of values/instances.
Arguments: root (values instanceTypes), hardware.
*/}}
{{- define "common.rules.instanceTypes" -}}
{{- $known := include "common.instanceTypes" (dict "root" .root "hardware" .hardware "extra" (list)) | fromJsonArray }}
{{- range (required "common.rules.instanceTypes needs root" .root).Values.instanceTypes }}
{{- if has . $known }}
instanceTypes: {{ . }} is known already; list only types that values/instances lacks
{{- end }}
{{- end }}
{{- end }}
