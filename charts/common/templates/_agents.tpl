{{/*
Agents: one pod on each node of some instance types. `make instances` writes the list of types,
files/instance-types.yaml, from values/instances and from what upstream lists (hack/agents.yaml).
*/}}

{{/*
The instance types with EFA, or those with NVIDIA GPUs, with commas.
Arguments: root, hardware (efa or nvidia), extra (further types).
*/}}
{{- define "common.instanceTypes" -}}
{{- $library := (required "common.instanceTypes needs root" .root).Subcharts.common }}
{{- $table := $library.Files.Get "files/instance-types.yaml" | fromYaml }}
{{- concat (get $table (required "common.instanceTypes needs hardware" .hardware)) .extra | uniq | join "," }}
{{- end }}

{{/*
Node affinity for agents: nodes of these types, and nodes with one of these labels. Terms are alternatives, so each of them
excludes the nodes of EKS Auto Mode where Auto Mode has an agent of its own.
Arguments: types (list), labels (a dict: each label suffices), autoMode (whether to include nodes of EKS Auto Mode).
*/}}
{{- define "common.agentAffinity" -}}
{{- $auto := dict "key" "eks.amazonaws.com/compute-type" "operator" "NotIn" "values" (list "auto") }}
{{- $terms := list (list (dict "key" "node.kubernetes.io/instance-type" "operator" "In" "values" (required "common.agentAffinity needs types" .types))) }}
{{- range $key, $value := .labels }}
{{- $terms = append $terms (list (dict "key" $key "operator" "In" "values" (list (toString $value)))) }}
{{- end }}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range $terms }}
      - matchExpressions:
          {{- toYaml (ternary . (append . $auto) $.autoMode) | nindent 10 }}
      {{- end }}
{{- end }}

{{/*
Tolerations of agents: the usual taints of accelerator and EFA nodes, with any effect, and those of the values.
Arguments: root (values tolerations).
*/}}
{{- define "common.agentTolerations" -}}
{{- range list "nvidia.com/gpu" "aws.amazon.com/neuron" "vpc.amazonaws.com/efa" "aws.amazon.com/efa" "CriticalAddonsOnly" }}
- {key: {{ . | quote }}, operator: Exists}
{{- end }}
{{- with (required "common.agentTolerations needs root" .root).Values.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Rules of agents: instanceTypes does not repeat a type that the charts know.
Arguments: root (values instanceTypes), hardware.
*/}}
{{- define "common.rules.instanceTypes" -}}
{{- $known := include "common.instanceTypes" (dict "root" .root "hardware" .hardware "extra" list) | splitList "," }}
{{- range (required "common.rules.instanceTypes needs root" .root).Values.instanceTypes }}
{{- if has . $known }}
instanceTypes: {{ . }} is known already; list only types that `make instances` does not know
{{- end }}
{{- end }}
{{- end }}
