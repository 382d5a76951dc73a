{{/*
The metadata of the pod of a `helm test`.
Arguments: root.
*/}}
{{- define "common.testMetadata" -}}
{{- $root := required "common.testMetadata needs root" .root -}}
name: {{ include "common.fullname" (dict "root" $root) }}-test
namespace: {{ $root.Release.Namespace | quote }}
labels:
  {{- include "common.labels" (dict "root" $root "component" "test") | nindent 2 }}
annotations:
  helm.sh/hook: test
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/*
The pod of a `helm test` of volumes: it writes to the claims that it may write to, and reads the others.
Arguments: root (values test, podSecurityContext, securityContext), claims {name: accessMode}.
*/}}
{{- define "common.mountTest" -}}
{{- $root := required "common.mountTest needs root" .root }}
{{- $claims := required "common.mountTest needs claims" .claims -}}
apiVersion: v1
kind: Pod
metadata:
  {{- include "common.testMetadata" (dict "root" $root) | nindent 2 }}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  {{- include "common.imagePullSecrets" (dict "root" $root) | nindent 2 }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  containers:
    - name: mount
      image: {{ include "common.image" (dict "root" $root "image" $root.Values.test.image) | quote }}
      imagePullPolicy: {{ $root.Values.test.image.pullPolicy | quote }}
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
        {{- toYaml $root.Values.test.resources | nindent 8 }}
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
        claimName: {{ $claim | quote }}
    {{- end }}
{{- end }}
