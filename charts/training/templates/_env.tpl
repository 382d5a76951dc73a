{{/*
A scalar as text. Helm reads numbers as floats; this prints whole ones without an exponent.
Arguments: value.
*/}}
{{- define "training.text" -}}
{{- if kindIs "float64" .value }}
{{- ternary (.value | int64 | toString) (.value | toString) (eq (floor .value) .value) }}
{{- else }}
{{- .value | toString }}
{{- end }}
{{- end }}

{{/*
The items of a list as quoted text, in YAML.
Arguments: words.
*/}}
{{- define "training.words" -}}
{{- range .words }}
- {{ include "training.text" (dict "value" .) | quote }}
{{- end }}
{{- end }}

{{/*
The environment of a container. `env` of the values overrides `derived`, and `extraEnv` overrides both. PYTHONPATH of `env`
comes after ours, where the runtime is. Each name appears once, because server-side apply merges the list by name. A variable comes
after those that it refers to as $(NAME), because the kubelet knows only what is above.
Arguments: root (values env, pod), derived {name: value}, fixed (list of EnvVar that the values cannot override).
*/}}
{{- define "training.env" -}}
{{- $v := (required "training.env needs root" .root).Values }}
{{- $derived := required "training.env needs derived" .derived }}
{{- if not (include "training.hasRuntime" (dict "root" .root)) }}{{ $derived = omit $derived "PYTHONPATH" }}{{ end }}
{{- $plain := mergeOverwrite (deepCopy $derived) (deepCopy $v.env) }}
{{- $paths := compact (list (get $derived "PYTHONPATH") (get $v.env "PYTHONPATH")) }}
{{- with $paths }}{{ $_ := set $plain "PYTHONPATH" (join ":" .) }}{{ end }}
{{- range concat (required "training.env needs fixed" .fixed) $v.pod.extraEnv }}{{ $_ := unset $plain .name }}{{ end -}}
env:
  {{- toYaml .fixed | nindent 2 }}
  {{- $left := list }}
  {{- range $name, $value := $plain }}{{ $left = append $left (dict "name" $name "text" (include "training.text" (dict "value" $value))) }}{{ end }}
  {{- $left = concat $left $v.pod.extraEnv }}
  {{- range until (min 10 (len $left) | int) }}
  {{- $unwritten := dict }}
  {{- range $left }}{{ $_ := set $unwritten (printf "$(%s)" .name) true }}{{ end }}
  {{- $waiting := list }}
  {{- range $each := $left }}
  {{- $own := printf "$(%s)" $each.name }}
  {{- $waits := false }}
  {{- range regexFindAll `\$\([^)]+\)` ($each.text | default $each.value | toString) -1 }}{{ $waits = or $waits (and (ne . $own) (hasKey $unwritten .)) }}{{ end }}
  {{- if $waits }}{{ $waiting = append $waiting $each }}{{ else }}{{ include "training.envVar" (dict "variable" $each) | nindent 2 }}{{ end }}
  {{- end }}
  {{- $left = $waiting }}
  {{- end }}
  {{- range $left }}{{ include "training.envVar" (dict "variable" .) | nindent 2 }}{{ end }}
{{- end }}

{{/*
An item of env. Arguments: variable (an EnvVar, or {name, text}).
*/}}
{{- define "training.envVar" -}}
{{- $variable := required "training.envVar needs variable" .variable }}
{{- if hasKey $variable "text" -}}
- name: {{ $variable.name | quote }}
  value: {{ $variable.text | quote }}
{{- else }}
{{- toYaml (list $variable) }}
{{- end }}
{{- end }}
