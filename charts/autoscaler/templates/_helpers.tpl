{{/*
The controller's command line.
*/}}
{{- define "autoscaler.args" -}}
- autoscale
{{- range include "autoscaler.namespaces" . | fromJsonArray }}
- --namespace={{ . }}
{{- end }}
{{- with .Values.prometheus.url }}
- --prometheus={{ . }}
{{- end }}
{{- if .Values.illNodes.enabled }}
- --ill-nodes
{{- end }}
- --lease-namespace={{ .Release.Namespace }}
- --direct
{{- end }}

{{/*
The namespaces of watchNamespace, as JSON: none for all.
*/}}
{{- define "autoscaler.namespaces" -}}
{{- $given := .Values.watchNamespace }}
{{- ternary (list $given | compact) $given (kindIs "string" $given) | toJson }}
{{- end }}

{{/*
The name of objects that have no namespace. Releases in two namespaces can have one name.
*/}}
{{- define "autoscaler.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "common.fullname" (dict "root" .)) }}
{{- end }}

{{/*
What the controller may do in the namespaces of its jobs. It makes no pods. It evicts pods only from ill nodes.
*/}}
{{- define "autoscaler.rules" -}}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [kueue.x-k8s.io]
  resources: [localqueues]
  verbs: [get]
{{- if .Values.illNodes.enabled }}
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
{{- end }}
{{- end }}

{{/*
Binds a role to the ServiceAccount.
Arguments: root, role (its name), kind (Role or ClusterRole).
*/}}
{{- define "autoscaler.binding" -}}
{{- $root := required "autoscaler.binding needs root" .root -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ required "autoscaler.binding needs kind" .kind | quote }}
  name: {{ required "autoscaler.binding needs role" .role | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ include "common.serviceAccountName" (dict "root" $root) | quote }}
    namespace: {{ $root.Release.Namespace | quote }}
{{- end }}
