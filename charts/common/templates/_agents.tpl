{{/*
Agents: one pod on each node of some instance types. Which types those are is written down once, in
values/instances; `make instances` makes files/instance-types.yaml from it.
*/}}

{{/*
The instance types of a kind of node, as a JSON list: those with EFA, or those with NVIDIA GPUs.
Arguments: root, kind (efa or nvidia), extra (types that are not in the table).
*/}}
{{- define "common.instanceTypes" -}}
{{- $library := (required "common.instanceTypes needs root" .root).Subcharts.common }}
{{- $table := $library.Files.Get "files/instance-types.yaml" | fromYaml }}
{{- concat (get $table (required "common.instanceTypes needs kind" .kind)) .extra | uniq | toJson }}
{{- end }}

{{/*
Node affinity for agents: nodes of these types, less those that EKS Auto Mode runs if it brings an agent of its
own. All in one term, because terms are alternatives.
Arguments: types (list), autoMode (whether its nodes count).
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
Tolerations of agents: the taints that accelerator and EFA nodes carry, whatever their effect, and the user's own.
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
Rules of agents: what is in the table needs no adding.
Arguments: root (values instanceTypes), kind.
*/}}
{{- define "common.rules.instanceTypes" -}}
{{- $known := include "common.instanceTypes" (dict "root" .root "kind" .kind "extra" (list)) | fromJsonArray }}
{{- range (required "common.rules.instanceTypes needs root" .root).Values.instanceTypes }}
{{- if has . $known }}
instanceTypes: {{ . }} is known already; list only types that values/instances has not
{{- end }}
{{- end }}
{{- end }}
