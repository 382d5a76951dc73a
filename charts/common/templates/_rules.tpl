{{/*
Rules about several values. Each template prints a sentence, on a line of its own, for each rule that the values break.
A chart's templates/validate.yaml collects the sentences, and common.rules.fail fails with all of them.
*/}}

{{/*
Fails with all sentences, and one for each value with characters that YAML or its readers change; does nothing if
there are none.
Arguments: root, sentences (text, one a line).
*/}}
{{- define "common.rules.fail" -}}
{{- $lines := list }}
{{- range $key, $value := (required "common.rules.fail needs root" .root).Values }}
{{- /* In JSON those below U+0020 are escaped; a pair of backslashes before one is text that spells such an escape. */}}
{{- if regexMatch `[\x{7f}-\x{9f}]|(^|[^\\])(\\\\)*\\(u00[01]|[bf])` (toJson $value) }}
{{- $lines = append $lines (printf "%s: it has a control character, which YAML would change; leave it out" $key) }}
{{- end }}
{{- end }}
{{- range splitList "\n" .sentences }}
{{- with trim . }}{{ $lines = append $lines . }}{{ end }}
{{- end }}
{{- if $lines }}{{ fail (join "\n" $lines) }}{{ end }}
{{- end }}

{{/*
A name is not longer than Kubernetes allows.
Arguments: name, limit, what (e.g. "Job"), because (the reason for the limit).
*/}}
{{- define "common.rules.name" -}}
{{- $name := required "common.rules.name needs name" .name }}
{{- if gt (len $name) (int .limit) }}
{{ .what }} name {{ $name }} has {{ len $name }} characters, {{ .limit }} fit ({{ .because }}); choose a shorter release name or fullnameOverride
{{- end }}
{{- end }}
