{{/*
What the templates of a job know about it, worked out once and kept in the root as Facts:
  instance   the facts of the instance type (training.instance)
  worker     what one worker pod gets (training.worker)
  arguments  the arguments of the values: args, then the groups of launch.argGroups in the order of their names

Helm merges the groups of several values files, but of two lists it keeps the last. This template prints nothing. A root with
other values has facts of its own, so it is made without those of the first: `omit .root "Values" "Facts"`.
Arguments: root (values args, instance, launch and those of training.worker).
*/}}
{{- define "training.facts" -}}
{{- $root := required "training.facts needs root" .root }}
{{- if not (hasKey $root "Facts") }}
{{- $facts := dict }}
{{- $_ := set $root "Facts" $facts }}
{{- $_ := set $facts "instance" (include "training.instance" (dict "root" $root) | fromJson) }}
{{- $_ := set $facts "worker" (include "training.worker" (dict "root" $root "instance" $facts.instance) | fromJson) }}
{{- $arguments := $root.Values.args }}
{{- range $group := $root.Values.launch.argGroups }}{{ $arguments = concat $arguments $group }}{{ end }}
{{- $_ := set $facts "arguments" $arguments }}
{{- end }}
{{- end }}
