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

{{/*
The `helm test` of volumes: a pod that mounts claims, writes to those that it may write to, and reads the others.
Arguments: root (values test, podSecurityContext, securityContext), claims {name: accessMode}.
*/}}
{{- define "common.mountTest" -}}
{{- $root := required "common.mountTest needs root" .root }}
{{- $claims := required "common.mountTest needs claims" .claims -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ include "common.fullname" (dict "root" $root) }}-test
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" "test") | nindent 4 }}
  annotations:
    helm.sh/hook: test
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  {{- include "common.imagePullSecrets" (dict "root" $root) | nindent 2 }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  containers:
    - name: mount
      image: {{ include "common.image" (dict "root" $root "image" $root.Values.test.image) }}
      imagePullPolicy: {{ $root.Values.test.image.pullPolicy }}
      command:
        - sh
        - -ec
        - |
          for folder in /volumes/rw/*; do
            [ -d "$folder" ] || continue
            file="$folder/.bireme-test-$HOSTNAME"
            echo "$HOSTNAME" > "$file" || { echo "$folder cannot be written by user $(id -u): give the folder to that user, or set podSecurityContext"; exit 1; }
            grep -qx "$HOSTNAME" "$file"
            rm "$file"
            echo "$folder can be written and read"
          done
          for folder in /volumes/ro/*; do
            [ -d "$folder" ] || continue
            ls "$folder" > /dev/null
            echo "$folder can be read"
          done
      resources:
        requests: {cpu: 10m, memory: 16Mi}
        limits: {memory: 64Mi}
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      volumeMounts:
        {{- range $i, $claim := keys $claims | sortAlpha }}
        {{- $readOnly := eq (get $claims $claim) "ReadOnlyMany" }}
        - {name: claim-{{ $i }}, mountPath: /volumes/{{ ternary "ro" "rw" $readOnly }}/{{ $claim }}, readOnly: {{ $readOnly }}}
        {{- end }}
  volumes:
    {{- range $i, $claim := keys $claims | sortAlpha }}
    - name: claim-{{ $i }}
      persistentVolumeClaim:
        claimName: {{ $claim }}
    {{- end }}
{{- end }}
