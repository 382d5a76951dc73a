{{/*
The text of a template, made once however often a render asks for it, as for the Job and for the digests of its parts.
Arguments: root (the chart's own, not one with other values), template (its name), arguments (what it gets), key (tells
texts of one template apart; optional).
*/}}
{{- define "common.once" -}}
{{- $root := required "common.once needs root" .root }}
{{- $key := printf "%s %s" (required "common.once needs template" .template) (.key | default "") }}
{{- if not (hasKey $root "Once") }}{{ $_ := set $root "Once" dict }}{{ end }}
{{- if not (hasKey $root.Once $key) }}{{ $_ := set $root.Once $key (include .template .arguments) }}{{ end }}
{{- get $root.Once $key }}
{{- end }}
