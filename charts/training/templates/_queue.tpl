{{/*
Adds the labels and annotations of pods that Kueue admits together, from several Jobs. Prints nothing.
Arguments: root (values queue), count (of all pods of the group; 0 for none), labels and annotations (the dicts to fill).
*/}}
{{- define "training.queue.group" -}}
{{- $root := required "training.queue.group needs root" .root }}
{{- if .count }}
{{- $_ := mergeOverwrite .labels (include "common.queueLabels" (dict "root" $root) | fromYaml) }}
{{- $_ := set .labels "kueue.x-k8s.io/pod-group-name" (include "common.jobName" (dict "root" $root)) }}
{{- $_ := set .annotations "kueue.x-k8s.io/pod-group-total-count" (.count | toString) }}
{{- end }}
{{- end }}

{{/*
Rules about Kueue.
Arguments: root (values queue, placement), least (whether the job can start with fewer workers),
scales (whether their number changes in place).
*/}}
{{- define "training.rules.queue" -}}
{{- $v := (required "training.rules.queue needs root" .root).Values }}
{{- $k := $v.queue }}
{{- if not $v.queue.name }}
{{- range $key := compact (list (ternary "" "admission" (eq $k.admission "whole")) (ternary "" "priorityClass" (empty $k.priorityClass)) (ternary "topology" "" $k.topology)) }}
queue.{{ $key }}: Kueue admits only jobs of a queue; set queue.name too, or leave it out
{{- end }}
{{- end }}
{{- if and $v.placement.gang $v.queue.name }}
placement.gang: Kueue (queue.name) admits a job as a whole already; leave one of the two out
{{- end }}
{{- if and $k.topology (not $v.placement.networkLayer) }}
queue.topology: Kueue needs the layer of the network; set placement.networkLayer, e.g. 3, or leave it out
{{- end }}
{{- if and $k.topology (eq $v.placement.networkMode "spread") }}
queue.topology: Kueue packs pods and cannot spread them; set placement.networkMode to prefer or require, or leave it out
{{- end }}
{{- if and $k.topology (eq $k.admission "elastic") }}
queue.admission: Kueue does not place an elastic job by topology; set queue.topology=false, or queue.admission=whole
{{- end }}
{{- if and (eq $k.admission "partial") (not .least) }}
queue.admission: this job starts with all its workers or not at all; set queue.admission=whole
{{- end }}
{{- if and (eq $k.admission "elastic") (not .scales) }}
queue.admission: the workers of this job do not change while it runs; set queue.admission=whole
{{- end }}
{{- end }}
