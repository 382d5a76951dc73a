{{/*
The pod of a `helm test` with the runtime in it.
Arguments: root (values image, imagePullSecrets, podSecurityContext, securityContext), runtime (component of the runtime),
container (its name), command (list of words), env, mounts and volumes (YAML, optional).
*/}}
{{- define "common.runtimeTest" -}}
{{- $root := required "common.runtimeTest needs root" .root }}
{{- $v := $root.Values -}}
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
    {{- toYaml $v.podSecurityContext | nindent 4 }}
  containers:
    - name: {{ required "common.runtimeTest needs container" .container }}
      image: {{ include "common.image" (dict "root" $root "image" $v.image) | quote }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      command:
        {{- include "common.words" (dict "words" (required "common.runtimeTest needs command" .command)) | nindent 8 }}
      env:
        - {name: PYTHONPATH, value: /bireme/runtime}
        {{- .env | default "" | nindent 8 }}
      securityContext:
        {{- toYaml $v.securityContext | nindent 8 }}
      volumeMounts:
        - {name: runtime, mountPath: /bireme/runtime, readOnly: true}
        {{- .mounts | default "" | nindent 8 }}
  volumes:
    {{- include "common.runtimeVolume" (dict "root" $root "component" .runtime) | nindent 4 }}
    {{- .volumes | default "" | nindent 4 }}
{{- end }}
