{{/*
The fields of the spec of a role's Job that do not change in place. paddle.job has the others.
Arguments: root, role (server or trainer).
*/}}
{{- define "paddle.jobSpec" -}}
{{- include "common.once" (dict "root" .root "template" "paddle.jobSpec.text" "key" .role "arguments" .) }}
{{- end }}
{{- define "paddle.jobSpec.text" -}}
{{- $v := .root.Values }}
{{- include "paddle.view" . }}
{{- $view := index .root.Views .role }}
{{- $worker := ternary dict $view.Facts.worker (eq .role "server") }}
{{- $containers := list (ternary "pserver" "trainer" (eq .role "server")) }}
{{- if and (eq .role "trainer") (include "paddle.isCollocated" .root) }}{{ $containers = append $containers "pserver" }}{{ end -}}
completionMode: Indexed
backoffLimitPerIndex: {{ int64 $v.recovery.backoffLimitPerIndex }}
podReplacementPolicy: Failed
podFailurePolicy:
  {{- include "training.podFailurePolicy" (dict "root" $view "worker" $worker "containers" $containers "codes" (list 64 70 78)) | nindent 2 }}
template:
  {{- include "paddle.pod" . | nindent 2 }}
{{- end }}

{{/*
Keeps these fields in the view of the role as Facts.spec, for templates that read some of them. Prints nothing.
Arguments: root, role.
*/}}
{{- define "paddle.spec" -}}
{{- include "paddle.view" . }}
{{- $facts := (index .root.Views .role).Facts }}
{{- if not (hasKey $facts "spec") }}{{ $_ := set $facts "spec" (include "paddle.jobSpec" . | fromYaml) }}{{ end }}
{{- end }}

{{/*
Arguments: root, role.
*/}}
{{- define "paddle.immutable" -}}
{{- include "common.once" (dict "root" .root "template" "paddle.immutable.text" "key" .role "arguments" .) }}
{{- end }}
{{- define "paddle.immutable.text" -}}
{{- include "paddle.spec" . }}
{{- include "common.immutable.job" (dict "spec" (index .root.Views .role).Facts.spec
    "further" (dict "number of pservers" (include "paddle.servers" .root))) }}
{{- end }}

{{/*
A role's Job.
Arguments: root, role, name, count.
*/}}
{{- define "paddle.job" -}}
{{- include "training.job" (dict "root" .root "name" .name "count" .count
    "component" (ternary "pserver" "trainer" (eq .role "server"))
    "spec" (include "paddle.jobSpec" .)
    "autoscale" .autoscale
    "group" (include "paddle.group" .root | int64)
    "digests" (include "paddle.immutable" .)) }}
{{- end }}
