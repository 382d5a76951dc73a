{{- define "etcd.peerService" -}}
{{- include "common.fullname" (dict "root" .) }}-peers
{{- end }}

{{/*
The settings that all members share, as etcd's own configuration file; a member adds its name, its URLs
and whom it joins. Health is served on a port of its own, so that probes work whatever clients must show.
*/}}
{{- define "etcd.config" -}}
{{- $config := dict
    "listen-client-urls" "http://0.0.0.0:2379"
    "listen-peer-urls" "http://0.0.0.0:2380"
    "listen-metrics-urls" "http://0.0.0.0:2381"
    "quota-backend-bytes" (mul (int64 .Values.quotaMiB) 1048576)
    "auto-compaction-mode" "periodic"
    "auto-compaction-retention" (printf "%dh" (int64 .Values.compaction.retentionHours))
    "logger" "zap" }}
{{- if .Values.v2API }}{{ $_ := set $config "enable-v2" true }}{{ end }}
{{- toPrettyJson $config }}
{{- end }}

{{/*
The user that init containers and checks log in as, or nothing.
Arguments: root, keys {env name: Secret key}.
*/}}
{{- define "etcd.authEnv" -}}
{{- if .root.Values.auth.enabled }}
{{- range $name, $key := .keys }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: {name: {{ $.root.Values.auth.existingSecret }}, key: {{ $key }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "etcd.immutableParts" -}}
{{- dict "persistence" (pick .Values.persistence "enabled" "size" "storageClassName") "name" (include "etcd.peerService" .) | toJson }}
{{- end }}

{{/*
The user's affinity with members kept apart. A user's own podAntiAffinity replaces the chart's.
*/}}
{{- define "etcd.affinity" -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "common.selectorLabels" (dict "root" . "component" "member") | fromYaml)) }}
{{- $apart := dict }}
{{- if eq .Values.antiAffinity "hard" }}
{{- $apart = dict "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) }}
{{- else if eq .Values.antiAffinity "soft" }}
{{- $apart = dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term))) }}
{{- end }}
{{- toYaml (merge (deepCopy .Values.affinity) $apart) }}
{{- end }}
