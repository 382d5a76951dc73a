{{/*
The registry of EKS in a region; empty for a region that is not in files/registries.yaml.
*/}}
{{- define "efa.registry" -}}
{{- $account := get (.Files.Get "files/registries.yaml" | fromYaml) .Values.region }}
{{- if $account }}
{{- $domain := "amazonaws.com" }}
{{- range $prefix, $own := .Files.Get "files/domains.yaml" | fromYaml }}
{{- if hasPrefix $prefix $.Values.region }}{{ $domain = $own }}{{ end }}
{{- end }}
{{- printf "%s.dkr.ecr.%s.%s" $account .Values.region $domain }}
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
