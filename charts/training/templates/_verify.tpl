{{/*
An init container that compares datasets on the claims with their manifests (charts/dataset), if the values name any.
Arguments: root (values data, claims, image, launch, securityContext).
*/}}
{{- define "training.verify.container" -}}
{{- $root := required "training.verify.container needs root" .root }}
{{- $v := $root.Values }}
{{- if and $v.data.verify.paths $v.claims -}}
{{- include "training.datasetContainer" (dict "root" $root "name" "verify"
    "arguments" (concat (list "verify") $v.data.verify.paths (ternary (list) (list "--quick") $v.data.verify.sha256))
    "mounts" (include "training.claimMounts" (dict "root" $root "readOnly" true))) }}
{{- end }}
{{- end }}

{{/*
The datasets are on the claims.
Arguments: root.
*/}}
{{- define "training.rules.verify" -}}
{{- $v := (required "training.rules.verify needs root" .root).Values }}
{{- range $path := $v.data.verify.paths }}
{{- $isThere := false }}
{{- range $v.claims }}
{{- if or (eq .mountPath $path) (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) $path) }}{{ $isThere = true }}{{ end }}
{{- end }}
{{- if not $isThere }}
data.verify.paths: {{ $path }} is not on one of the claims; mount the claim with the dataset, or leave the path out
{{- end }}
{{- end }}
{{- end }}
