{{/*
Devices of workers by dynamic resource allocation (DRA).
*/}}

{{/*
The name of the template of a claim. It changes with what the claim asks for, because a template cannot change.
Arguments: root, name, devices.
*/}}
{{- define "training.resourceClaimTemplateName" -}}
{{- $root := required "training.resourceClaimTemplateName needs root" .root }}
{{- printf "%s-%s-%s" (include "common.fullname" (dict "root" $root)) .name (required "training.resourceClaimTemplateName needs devices" .devices | toJson | sha256sum | trunc 8) }}
{{- end }}

{{/*
The ResourceClaimTemplates of the values.
Arguments: root (values pod), component.
*/}}
{{- define "training.resourceClaimTemplates" -}}
{{- $root := required "training.resourceClaimTemplates needs root" .root }}
{{- $component := .component }}
{{- range $name, $devices := $root.Values.pod.resourceClaimTemplates }}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: {{ include "training.resourceClaimTemplateName" (dict "root" $root "name" $name "devices" $devices) | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" $component) | nindent 4 }}
spec:
  spec:
    devices:
      {{- toYaml $devices | nindent 6 }}
{{- end }}
{{- end }}

{{/*
The claims of a pod: those of the values, and one by each template. Nothing if there are none.
Arguments: root (values pod).
*/}}
{{- define "training.resourceClaims" -}}
{{- $root := required "training.resourceClaims needs root" .root }}
{{- $claims := $root.Values.pod.resourceClaims }}
{{- range $name, $devices := $root.Values.pod.resourceClaimTemplates }}
{{- $template := include "training.resourceClaimTemplateName" (dict "root" $root "name" $name "devices" $devices) }}
{{- $claims = append $claims (dict "name" $name "resourceClaimTemplateName" $template) }}
{{- end }}
{{- with $claims }}
resourceClaims:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Rules about claims of devices.
Arguments: root (values pod, resources).
*/}}
{{- define "training.rules.devices" -}}
{{- $root := required "training.rules.devices needs root" .root }}
{{- $v := $root.Values }}
{{- $claims := list }}
{{- range $v.pod.resourceClaims }}
{{- if hasKey $v.pod.resourceClaimTemplates .name }}
pod.resourceClaimTemplates.{{ .name }}: resourceClaims has a claim {{ .name }} already; give one of them another name
{{- end }}
{{- $claims = append $claims .name }}
{{- end }}
{{- range dig "claims" list $v.resources }}
{{- if hasKey $v.pod.resourceClaimTemplates .name }}
resources.claims: the training container uses {{ .name }} of pod.resourceClaimTemplates anyway; leave it out
{{- else if not (has .name $claims) }}
resources.claims: there is no {{ .name }} in pod.resourceClaims; add it there, or correct the name
{{- end }}
{{- end }}
{{- if and $v.pod.resourceClaimTemplates (semverCompare "<1.34.0-0" $root.Capabilities.KubeVersion.Version) }}
pod.resourceClaimTemplates: devices are claimed from Kubernetes 1.34 on, and this cluster has {{ $root.Capabilities.KubeVersion.Version }}; set accelerators and efa, whose devices a device plugin gives
{{- end }}
{{- end }}
