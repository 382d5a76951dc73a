{{/*
An init container that compares datasets on the claims with their manifests (charts/dataset), if the values name any.
Arguments: root (values verify, claims, image, python, securityContext).
*/}}
{{- define "common.verify.container" -}}
{{- $root := required "common.verify.container needs root" .root }}
{{- $v := $root.Values }}
{{- if and $v.verify.paths $v.claims -}}
{{- include "common.datasetContainer" (dict "root" $root "name" "verify"
    "arguments" (concat (list "verify") $v.verify.paths (ternary (list) (list "--quick") $v.verify.sha256))
    "mounts" (include "common.claimMounts" (dict "root" $root "readOnly" true) | fromYamlArray)) }}
{{- end }}
{{- end }}

{{/*
The datasets are on the claims.
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
verify.paths: {{ $path }} is not on one of the claims; mount the claim with the dataset, or leave the path out
{{- end }}
{{- end }}
{{- end }}
