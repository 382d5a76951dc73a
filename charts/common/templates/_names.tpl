{{/*
The name from which the names of a release's objects are made. The root chart uses the release's name, because the
release is the job; a subchart appends its own name. Names are never truncated: common.rules.name refuses long ones.
Arguments: root.
*/}}
{{- define "common.fullname" -}}
{{- $root := required "common.fullname needs root" .root }}
{{- if $root.Values.fullnameOverride }}
{{- $root.Values.fullnameOverride }}
{{- else if $root.Values.nameOverride }}
{{- printf "%s-%s" $root.Release.Name $root.Values.nameOverride }}
{{- else if $root.Chart.IsRoot }}
{{- $root.Release.Name }}
{{- else }}
{{- printf "%s-%s" $root.Release.Name $root.Chart.Name }}
{{- end }}
{{- end }}

{{/*
The name of this run's Job. A Job's template is immutable, so each run is a Job of its own (docs/adr/0003).
Arguments: root (with .Values.run).
*/}}
{{- define "common.jobName" -}}
{{- $root := required "common.jobName needs root" .root }}
{{- printf "%s-r%d" (include "common.fullname" (dict "root" $root)) (required "common.jobName needs .Values.run" $root.Values.run | int64) }}
{{- end }}

{{/*
Labels by which Services and controllers select pods. No upgrade changes them.
Arguments: root, component (the role: worker, member, ...).
*/}}
{{- define "common.selectorLabels" -}}
{{- $root := required "common.selectorLabels needs root" .root -}}
app.kubernetes.io/name: {{ $root.Chart.Name | quote }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ required "common.selectorLabels needs component" .component | quote }}
{{- end }}

{{/*
Labels of an object that can change in place. A Job's pods have only the selector labels, because they cannot.
Arguments: root, component.
*/}}
{{- define "common.labels" -}}
{{- $root := required "common.labels needs root" .root -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
{{ include "common.selectorLabels" . }}
{{- /* Flux adds the digest of the chart to its version, after a plus, which no label may have. */}}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | default $root.Chart.Version | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service | quote }}
app.kubernetes.io/part-of: bireme
{{- end }}
