{{/*
An image reference. global.imageRegistry wins over the image's own registry; a digest wins over the tag.
Arguments: root, image {registry, repository, tag, digest}.
*/}}
{{- define "common.image" -}}
{{- $root := required "common.image needs root" .root }}
{{- $image := required "common.image needs image" .image }}
{{- $registry := ($root.Values.global | default dict).imageRegistry | default $image.registry }}
{{- $name := join "/" (compact (list $registry $image.repository)) }}
{{- if $image.digest }}
{{- printf "%s@%s" $name $image.digest }}
{{- else }}
{{- printf "%s:%s" $name $image.tag }}
{{- end }}
{{- end }}

{{/*
imagePullSecrets of a pod, or nothing.
Arguments: root.
*/}}
{{- define "common.imagePullSecrets" -}}
{{- with (required "common.imagePullSecrets needs root" .root).Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}
