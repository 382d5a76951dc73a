{{/*
An image reference. The longest key of global.imageRegistries that the image's name starts with decides its registry,
then global.imageRegistry, then its own. A digest, its own or that of global.imageDigests for name and tag, wins over the tag.
Arguments: root, image {registry, repository, tag, digest}.
*/}}
{{- define "common.image" -}}
{{- $root := required "common.image needs root" .root }}
{{- $image := required "common.image needs image" .image }}
{{- $global := $root.Values.global }}
{{- $own := join "/" (compact (list $image.registry $image.repository)) }}
{{- $upstream := "" }}
{{- range $start := keys ($global.imageRegistries | default dict) }}
{{- if and (hasPrefix (printf "%s/" $start) $own) (gt (len $start) (len $upstream)) }}{{ $upstream = $start }}{{ end }}
{{- end }}
{{- $registry := $global.imageRegistry | default $image.registry }}
{{- with $upstream }}{{ $registry = get $global.imageRegistries . }}{{ end }}
{{- $name := join "/" (compact (list $registry $image.repository)) }}
{{- $digest := $image.digest | default (get ($global.imageDigests | default dict) (printf "%s:%s" $own $image.tag)) }}
{{- ternary (printf "%s:%s" $name $image.tag) (printf "%s@%s" $name $digest) (empty $digest) }}
{{- end }}

{{/*
imagePullSecrets of a pod, or nothing.
Arguments: root.
*/}}
{{- define "common.imagePullSecrets" -}}
{{- with (required "common.imagePullSecrets needs root" .root).Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}
