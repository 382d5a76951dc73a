{{/*
The operator's command line. It replaces the upstream defaults that make large jobs slow.
*/}}
{{- define "mpijob.args" -}}
{{- with .Values.watchNamespace }}
- --namespace={{ . }}
{{- end }}
- --lock-namespace={{ .Release.Namespace }}
- --threadiness={{ int64 .Values.threads }}
- --kube-api-qps={{ int64 .Values.client.qps }}
- --kube-api-burst={{ int64 .Values.client.burst }}
- --controller-queue-rate-limit={{ int64 .Values.queue.rate }}
- --controller-queue-burst={{ int64 .Values.queue.burst }}
- --monitoring-port={{ ternary (int64 .Values.metrics.port) 0 .Values.metrics.enabled }}
{{- with .Values.gangScheduler }}
- --gang-scheduling={{ . }}
{{- end }}
{{- with .Values.clusterDomain }}
- --cluster-domain={{ . }}
{{- end }}
- -v={{ int64 .Values.logLevel }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
The name of objects that have no namespace. Releases in two namespaces can have one name.
*/}}
{{- define "mpijob.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "common.fullname" (dict "root" .)) }}
{{- end }}

{{/*
The permissions of the operator in the namespaces that it watches. The upstream role lacks jobs/status, without which a
suspended job does not resume, and has many permissions that the code does not use.
*/}}
{{- define "mpijob.rules" -}}
- apiGroups: [kubeflow.org]
  resources: [mpijobs]
  verbs: [list, watch]
- apiGroups: [kubeflow.org]
  resources: [mpijobs/status, mpijobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [configmaps, secrets, services]
  verbs: [list, watch, create, update]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch, create, update]
- apiGroups: [batch]
  resources: [jobs/status]
  verbs: [update]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- with .Values.gangScheduler }}
- apiGroups: [{{ ternary "scheduling.volcano.sh" "scheduling.x-k8s.io" (eq . "volcano") }}]
  resources: [podgroups]
  verbs: [list, watch, create, update, delete]
{{- end }}
{{- end }}

{{/*
Binds a role to the operator's ServiceAccount.
Arguments: root, role (its name), kind (Role or ClusterRole).
*/}}
{{- define "mpijob.binding" -}}
{{- $root := required "mpijob.binding needs root" .root -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ required "mpijob.binding needs kind" .kind | quote }}
  name: {{ required "mpijob.binding needs role" .role | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ include "common.serviceAccountName" (dict "root" $root) | quote }}
    namespace: {{ $root.Release.Namespace | quote }}
{{- end }}
