{{/*
The name of a volume or storage class for one claim. These objects have no namespace, so the name is
NAMESPACE.RELEASE.CLAIM, which no other claim can have, unless the values give one.
Arguments: root, claim (name), name (of the values, optional).
*/}}
{{- define "common.volumeName" -}}
{{- $root := required "common.volumeName needs root" .root }}
{{- .name | default (printf "%s.%s.%s" $root.Release.Namespace (include "common.fullname" (dict "root" $root)) (required "common.volumeName needs claim" .claim)) }}
{{- end }}

{{/*
The annotations of an object that may outlive its release, if it has any.
Arguments: keep (whether it does), digests (of the immutable parts, optional).
*/}}
{{- define "common.storageAnnotations" -}}
{{- if or .keep .digests }}
annotations:
  {{- if .keep }}
  helm.sh/resource-policy: keep
  {{- end }}
  {{- with .digests }}
  bireme/immutable: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
A claim for one volume, or for a storage class of its own.
Arguments: root, name, volume {size, accessMode, storageClassName, volumeName (of a static one), keep}, digests (of the immutable parts).
*/}}
{{- define "common.claim" -}}
{{- $root := required "common.claim needs root" .root -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ required "common.claim needs name" .name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" "volume") | nindent 4 }}
  {{- include "common.storageAnnotations" (dict "keep" .volume.keep "digests" .digests) | nindent 2 }}
spec:
  accessModes: [{{ .volume.accessMode | quote }}]
  storageClassName: {{ .volume.storageClassName | quote }}
  {{- with .volume.volumeName }}
  # Claim and volume name each other, so that neither binds to another.
  volumeName: {{ . | quote }}
  {{- end }}
  resources:
    requests:
      storage: {{ .volume.size | quote }}
{{- end }}

{{/*
The cluster has the CSI driver. Nothing is checked if Helm renders without a cluster.
Arguments: driver, key (of the values that needs it), advice (how to install it).
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

{{/*
A memory quantity in whole MiB, e.g. of 1.5Gi or 32G; 0 for what is none.
Arguments: quantity.
*/}}
{{- define "common.MiB" -}}
{{- $text := required "common.MiB needs quantity" .quantity }}
{{- $text = ternary (int64 $text | toString) (toString $text) (kindIs "float64" $text) }}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text | default "0" }}
{{- $bytes := dict "Ti" 1099511627776 "Gi" 1073741824 "Mi" 1048576 "Ki" 1024 "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 }}
{{- $unit := trimPrefix $number $text }}
{{- divf (mulf (float64 $number) (get $bytes $unit | default 0)) 1048576 | floor | int64 }}
{{- end }}
