{{/*
The name of the chosen agent's objects. Each agent has a DaemonSet of its own, because a selector cannot change.
*/}}
{{- define "gpu-metrics.name" -}}
{{- printf "%s-%s" (include "common.fullname" (dict "root" .)) .Values.agent }}
{{- end }}

{{- define "gpu-metrics.serviceName" -}}
{{- .Values.dcgm.service.name | default (include "gpu-metrics.name" .) }}
{{- end }}

{{/*
The name of objects that have no namespace.
*/}}
{{- define "gpu-metrics.clusterName" -}}
{{- printf "%s.%s" .Release.Namespace (include "gpu-metrics.name" .) }}
{{- end }}

{{- define "gpu-metrics.hasContainerInsights" -}}
{{- if and (eq .Values.agent "cloudwatch") .Values.cloudwatch.containerInsights.enabled }}true{{ end }}
{{- end }}

{{/*
The configuration of the CloudWatch agent (translator/config/schema.json of aws/amazon-cloudwatch-agent).
*/}}
{{- define "gpu-metrics.cloudwatchConfig" -}}
{{- $c := .Values.cloudwatch }}
{{- $seconds := int64 $c.intervalSeconds }}
{{- $dimensions := dict }}
{{- range $c.dimensions }}{{ $_ := set $dimensions . (printf "${aws:%s}" .) }}{{ end }}
{{- $metrics := dict "namespace" $c.namespace
    "metrics_collected" (dict "nvidia_gpu" (dict "measurement" $c.measurement "metrics_collection_interval" $seconds)) }}
{{- with $dimensions }}{{ $_ := set $metrics "append_dimensions" . }}{{ end }}
{{- $config := dict "agent" (dict "region" $c.region) "metrics" $metrics }}
{{- if $c.containerInsights.enabled }}
{{- $kubernetes := dict "cluster_name" $c.containerInsights.clusterName "metrics_collection_interval" $seconds }}
{{- $_ := set $config "logs" (dict "metrics_collected" (dict "kubernetes" $kubernetes) "force_flush_interval" 5) }}
{{- end }}
{{- toPrettyJson $config }}
{{- end }}

{{/*
The fields that DCGM measures, one a line: field, type, help.
*/}}
{{- define "gpu-metrics.counters" -}}
{{- $counters := .Files.Get "files/counters.yaml" | fromYaml }}
{{- if .Values.dcgm.profiling }}{{ $counters = merge $counters (.Files.Get "files/profiling.yaml" | fromYaml) }}{{ end }}
{{- range $field, $about := mergeOverwrite $counters .Values.dcgm.counters }}
{{ $field }}, {{ $about }}
{{- end }}
{{- end }}

{{/*
The pod spec that agents share. An agent requests no GPU, because a GPU that it held could not train; it sees all of them.
*/}}
{{- define "gpu-metrics.podSpec" -}}
serviceAccountName: {{ include "common.serviceAccountName" (dict "root" .) | quote }}
enableServiceLinks: false
{{- include "common.imagePullSecrets" (dict "root" .) }}
{{- range $key := list "priorityClassName" "runtimeClassName" "nodeSelector" }}
{{- with index $.Values $key }}
{{ toYaml (dict $key .) }}
{{- end }}
{{- end }}
affinity:
  {{- $types := include "common.instanceTypes" (dict "root" . "hardware" "nvidia" "extra" .Values.instanceTypes) | splitList "," }}
  {{- include "common.agentAffinity" (dict "types" $types "labels" (merge dict .Values.nodeLabels (.Files.Get "files/gpu-labels.yaml" | fromYaml)) "autoMode" true) | nindent 2 }}
tolerations:
  {{- include "common.agentTolerations" (dict "root" .) | nindent 2 }}
{{- end }}

{{/*
How an agent gets all GPUs without a request: by the variable, and by a mount where the runtime does not trust the variable
of an unprivileged container, as on Bottlerocket and so in EKS Auto Mode
(bottlerocket.dev/en/os/1.54.x/api/settings/nvidia-container-runtime).
*/}}
{{- define "gpu-metrics.gpuEnv" -}}
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- end }}

{{- define "gpu-metrics.gpuMount" -}}
- {name: all-gpus, mountPath: /var/run/nvidia-container-devices/all}
{{- end }}

{{- define "gpu-metrics.gpuVolume" -}}
- name: all-gpus
  hostPath: {path: /dev/null}
{{- end }}
