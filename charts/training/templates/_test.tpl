{{/*
The pod of a `helm test` that runs a command of the runtime.
Arguments: root (values image, imagePullSecrets, podSecurityContext, securityContext, pod), runtime (component of the runtime),
container (its name), command (list of words), env, mounts and volumes (YAML, optional).
*/}}
{{- define "training.test" -}}
{{- $root := required "training.test needs root" .root }}
{{- $v := $root.Values -}}
apiVersion: v1
kind: Pod
metadata:
  {{- include "common.testMetadata" (dict "root" $root) | nindent 2 }}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  {{- include "common.imagePullSecrets" (dict "root" $root) | nindent 2 }}
  securityContext:
    {{- toYaml $v.podSecurityContext | nindent 4 }}
  containers:
    - name: {{ required "training.test needs container" .container | quote }}
      image: {{ include "common.image" (dict "root" $root "image" $v.image) | quote }}
      imagePullPolicy: {{ $v.image.pullPolicy | quote }}
      command:
        {{- include "training.words" (dict "words" (required "training.test needs command" .command)) | nindent 8 }}
      env:
        - {name: PYTHONPATH, value: /bireme/runtime}
        {{- .env | default "" | nindent 8 }}
      resources:
        {{- toYaml $v.pod.helperResources | nindent 8 }}
      securityContext:
        {{- toYaml $v.securityContext | nindent 8 }}
      volumeMounts:
        - {name: runtime, mountPath: /bireme/runtime, readOnly: true}
        {{- .mounts | default "" | nindent 8 }}
  volumes:
    {{- include "runtime.volume" (dict "root" $root "component" .runtime) | nindent 4 }}
    {{- .volumes | default "" | nindent 4 }}
{{- end }}
