{{/*
The registry of EKS in a region; empty for a region that is not in files/registries.yaml.
*/}}
{{- define "efa.registry" -}}
{{- $account := get (.Files.Get "files/registries.yaml" | fromYaml) .Values.region }}
{{- if $account }}
{{- printf "%s.dkr.ecr.%s.amazonaws.com%s" $account .Values.region (ternary ".cn" "" (hasPrefix "cn-" .Values.region)) }}
{{- end }}
{{- end }}

{{- define "efa.image" -}}
{{- $image := merge (dict "registry" (.Values.image.registry | default (include "efa.registry" .))) .Values.image }}
{{- include "common.image" (dict "root" . "image" $image) }}
{{- end }}

{{- define "efa.securityContext" -}}
{{- if .Values.neuronTopology }}
{{- dict "privileged" true "runAsUser" 0 "runAsNonRoot" false | toYaml }}
{{- else }}
{{- toYaml .Values.securityContext }}
{{- end }}
{{- end }}
