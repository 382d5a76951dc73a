{{/*
An init container that holds datasets on the claims against their manifests (charts/dataset) before a worker trains,
or nothing. Arguments: root (values verify, claims, image, python, securityContext).
*/}}
{{- define "common.verify.container" -}}
{{- $root := required "common.verify.container needs root" .root }}
{{- $v := $root.Values }}
{{- if $v.verify.paths -}}
{{- include "common.datasetContainer" (dict "root" $root "name" "verify"
    "arguments" (concat (list "verify") $v.verify.paths (ternary (list) (list "--quick") $v.verify.sha256))
    "mounts" (include "common.claimMounts" (dict "root" $root "readOnly" true) | fromYamlArray)) }}
{{- end }}
{{- end }}

{{/*
Only what lies on a claim can be verified.
Arguments: root.
*/}}
{{- define "common.rules.verify" -}}
{{- $v := (required "common.rules.verify needs root" .root).Values }}
{{- range $path := $v.verify.paths }}
{{- $isThere := false }}
{{- range $v.claims }}
{{- if or (eq .mountPath $path) (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) $path) }}{{ $isThere = true }}{{ end }}
{{- end }}
{{- if not $isThere }}
verify.paths: {{ $path }} is on none of the claims; mount the claim with the dataset, or leave the path out
{{- end }}
{{- end }}
{{- end }}
