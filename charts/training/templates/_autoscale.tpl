{{/*
Jobs whose number of workers charts/autoscaler changes while they run (docs/elasticity.md, docs/adr/0011).
*/}}

{{/*
What the controller reads on the Job, as JSON; {} without elastic.autoscale.enabled.
Arguments: root (values elastic), least and most (workers where the values name none), step (workers that come and go
together), spares (pods beside the workers).
*/}}
{{- define "training.autoscale" -}}
{{- $a := (required "training.autoscale needs root" .root).Values.elastic.autoscale }}
{{- $policy := dict }}
{{- if $a.enabled }}
{{- $policy = dict "min" (int64 (default .least $a.min)) "max" (int64 (default .most $a.max))
    "step" (int64 (default 1 .step)) "spares" (int64 (default 0 .spares))
    "cooldown" $a.cooldown "reserve" (int64 $a.reserve) }}
{{- with $a.schedules }}{{ $_ := set $policy "schedules" . }}{{ end }}
{{- if $a.metric.query }}{{ $_ := set $policy "metric" $a.metric }}{{ end }}
{{- end }}
{{- toJson $policy }}
{{- end }}

{{/*
The fewest workers that the job ever has: those for which a start and an end wait, since no pod can know the others.
Arguments: root (value workers), policy (the result of training.autoscale).
*/}}
{{- define "training.autoscale.least" -}}
{{- $least := (required "training.autoscale.least needs root" .root).Values.workers }}
{{- if .policy }}
{{- $least = .policy.min }}
{{- range .policy.schedules }}{{ if hasKey . "min" }}{{ $least = min (int64 $least) (int64 .min) }}{{ end }}{{ end }}
{{- end }}
{{- int64 $least }}
{{- end }}

{{/*
The pods of a Job: as many as it has while the controller decides, so that an upgrade does not take its number back.
Without a cluster to ask (helm template, Argo CD), and for a new Job, those of the values.
Arguments: root (value workers), name (of the Job), policy (the result of training.autoscale), spares.
*/}}
{{- define "training.autoscale.pods" -}}
{{- $root := required "training.autoscale.pods needs root" .root }}
{{- $pods := add (int64 $root.Values.workers) (int64 (default 0 .spares)) }}
{{- if .policy }}
{{- $live := lookup "batch/v1" "Job" $root.Release.Namespace (required "training.autoscale.pods needs name" .name) }}
{{- with dig "metadata" "annotations" "bireme/autoscale" "" $live }}
{{- $pods = add (sub (int64 $live.spec.completions) (fromJson .).spares) (int64 (default 0 $.spares)) }}
{{- end }}
{{- end }}
{{- int64 $pods }}
{{- end }}

{{/*
Rules about autoscale.
Arguments: root (values elastic, workers, queue), policy (the result of training.autoscale), least and most (the
bounds of the run, or empty).
*/}}
{{- define "training.rules.autoscale" -}}
{{- $v := (required "training.rules.autoscale needs root" .root).Values }}
{{- $a := $v.elastic.autoscale }}
{{- $p := .policy }}
{{- if not $a.enabled }}
{{- range $key := list "min" "max" "schedules" }}
{{- if index $a $key }}
elastic.autoscale.{{ $key }}: the number of workers follows nothing; set elastic.autoscale.enabled=true too, or leave it out
{{- end }}
{{- end }}
{{- if $a.metric.query }}
elastic.autoscale.metric.query: the number of workers follows nothing; set elastic.autoscale.enabled=true too, or leave it out
{{- end }}
{{- else }}
{{- if gt (int64 $p.min) (int64 $p.max) }}
elastic.autoscale.min: {{ int64 $p.min }} is more than elastic.autoscale.max, {{ int64 $p.max }}; lower the one or raise the other
{{- end }}
{{- if or (lt (int64 $v.workers) (int64 $p.min)) (gt (int64 $v.workers) (int64 $p.max)) }}
workers: the job starts with {{ int64 $v.workers }}, and autoscale lets it have {{ int64 $p.min }} to {{ int64 $p.max }}; choose a number between them, or change elastic.autoscale.min and elastic.autoscale.max
{{- end }}
{{- include "training.rules.autoscale.bounds" (dict "key" "elastic.autoscale" "min" $p.min "max" $p.max "policy" $p "least" .least "most" .most) }}
{{- range $index, $each := $a.schedules }}
{{- $key := printf "elastic.autoscale.schedules[%d]" $index }}
{{- $min := ternary $each.min $p.min (hasKey $each "min") }}
{{- $max := ternary $each.max $p.max (hasKey $each "max") }}
{{- if gt (int64 $min) (int64 $max) }}
{{ $key }}: min is {{ int64 $min }} then and max {{ int64 $max }}; lower the one or raise the other
{{- end }}
{{- include "training.rules.autoscale.bounds" (dict "key" $key "min" $min "max" $max "policy" $p "least" $.least "most" $.most) }}
{{- end }}
{{- if and $v.queue.name (ne $v.queue.admission "elastic") }}
elastic.autoscale.enabled: Kueue stops a job of queue {{ $v.queue.name }} whose number of pods changes; set queue.admission=elastic, or leave one of the two out
{{- end }}
{{- end }}
{{- end }}

{{- define "training.rules.autoscale.bounds" }}
{{- if and .least (lt (int64 .min) (int64 .least)) }}
{{ .key }}.min: {{ int64 .min }} is less than elastic.minWorkers, {{ int64 .least }}, so training would stop; raise it or lower elastic.minWorkers
{{- end }}
{{- if and .most (gt (int64 .max) (int64 .most)) }}
{{ .key }}.max: {{ int64 .max }} is more than elastic.maxWorkers, {{ int64 .most }}, so some would never train; lower it or raise elastic.maxWorkers
{{- end }}
{{- $key := .key }}
{{- $step := int64 .policy.step }}
{{- range $name, $count := dict "min" .min "max" .max }}
{{- if mod (int64 $count) $step }}
{{ $key }}.{{ $name }}: {{ int64 $count }} is not a multiple of elastic.workersPerUnit, {{ $step }}, and workers train in whole units; choose a multiple
{{- end }}
{{- end }}
{{- end }}
