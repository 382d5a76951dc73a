{{/*
Volumes and claims that belong to each other. Volumes and storage classes have no namespace, so the name of
one carries that of its claim: NAMESPACE.RELEASE.CLAIM; none of the three can be mistaken for another's.
Arguments: root, claim (name).
*/}}
{{- define "common.volumeName" -}}
{{- $root := required "common.volumeName needs root" .root }}
{{- printf "%s.%s.%s" $root.Release.Namespace (include "common.fullname" (dict "root" $root)) (required "common.volumeName needs claim" .claim) }}
{{- end }}

{{/*
The annotations of what may have to outlive its release, or nothing.
Arguments: keep, digests (of the immutable parts, optional).
*/}}
{{- define "common.storageAnnotations" -}}
{{- if or .keep .digests }}
annotations:
  {{- if .keep }}
  helm.sh/resource-policy: keep
  {{- end }}
  {{- with .digests }}
  bireme.dev/immutable: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
A claim that binds to one volume, or to a class of its own.
Arguments: root, name, volume {size, accessMode, storageClassName, volumeName (of a static one), keep}, parts (immutable).
*/}}
{{- define "common.claim" -}}
{{- $root := required "common.claim needs root" .root -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ required "common.claim needs name" .name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" "volume") | nindent 4 }}
  {{- include "common.storageAnnotations" (dict "keep" .volume.keep "digests" (include "common.immutable.digests" (dict "parts" .parts))) | nindent 2 }}
spec:
  accessModes: [{{ .volume.accessMode }}]
  storageClassName: {{ .volume.storageClassName | quote }}
  {{- with .volume.volumeName }}
  # By name, and the volume names this claim: neither takes, nor is taken by, a stranger's.
  volumeName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .volume.size }}
{{- end }}

{{/*
A sentence when the cluster has no such CSI driver; nothing when it has, or when there is no cluster to ask.
Arguments: driver, key (that asks for it), advice (how it is installed).
*/}}
{{- define "common.rules.csiDriver" -}}
{{- $driver := required "common.rules.csiDriver needs driver" .driver }}
{{- $drivers := lookup "storage.k8s.io/v1" "CSIDriver" "" "" }}
{{- if hasKey $drivers "items" }}
{{- $names := list }}
{{- range $drivers.items }}{{ $names = append $names .metadata.name }}{{ end }}
{{- if not (has $driver $names) }}
{{ .key }}: this cluster has no CSI driver {{ $driver }}, so the volume could not be mounted; {{ .advice }}
{{- end }}
{{- end }}
{{- end }}
