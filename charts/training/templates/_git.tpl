{{/*
The init container that clones the repository of the values into /bireme/script, if they name one.
Arguments: root (values launch, pod, securityContext).
*/}}
{{- define "training.git.container" -}}
{{- $root := required "training.git.container needs root" .root }}
{{- $v := $root.Values }}
{{- $git := $v.launch.git }}
{{- if $git.url -}}
- name: git
  image: {{ include "common.image" (dict "root" $root "image" $git.image) | quote }}
  imagePullPolicy: {{ $git.image.pullPolicy | quote }}
  command:
    {{- toYaml (list "sh" "-c" ($root.Subcharts.training.Files.Get "files/clone.sh" | replace "$" "$$") "clone" $git.url $git.ref $git.path) | nindent 4 }}
  workingDir: /bireme/script
  env:
    - {name: HOME, value: /tmp}
    {{- include "common.proxy" (dict "url" $git.proxy) | nindent 4 }}
    {{- if $git.caBundle }}
    - {name: GIT_SSL_CAINFO, value: /bireme/ca/ca.crt}
    {{- end }}
    {{- if $git.existingSecret }}
    {{- range $name, $key := dict "GIT_USERNAME" "username" "GIT_PASSWORD" "password" }}
    - name: {{ $name }}
      valueFrom: {secretKeyRef: {name: {{ $git.existingSecret | quote }}, key: {{ $key }}}}
    {{- end }}
    {{- end }}
  resources:
    {{- toYaml $v.pod.helperResources | nindent 4 }}
  securityContext:
    {{- toYaml $v.securityContext | nindent 4 }}
  volumeMounts:
    - {name: script, mountPath: /bireme/script}
    {{- if $git.caBundle }}
    - {name: git-ca, mountPath: /bireme/ca, readOnly: true}
    {{- end }}
{{- end }}
{{- end }}

{{/*
What the pods train: the repository and what is cloned of it, as URL@REF. Empty without a repository.
Arguments: root (values launch).
*/}}
{{- define "training.git.source" -}}
{{- $git := (required "training.git.source needs root" .root).Values.launch.git }}
{{- if $git.url }}{{ printf "%s@%s" $git.url ($git.ref | default "HEAD") }}{{ end }}
{{- end }}

{{/*
The repository is the only program, and its address keeps no secret.
Arguments: root (values script, launch).
*/}}
{{- define "training.rules.git" -}}
{{- $v := (required "training.rules.git needs root" .root).Values }}
{{- $git := $v.launch.git }}
{{- if and $git.url (not (regexMatch `^https?://[^/@\s]+/\S+$` $git.url)) }}
launch.git.url: it is https://HOST/PATH, without a name or a password; put these into a Secret (launch.git.existingSecret)
{{- end }}
{{- if and $git.url (or $v.script $v.launch.files) }}
launch.git.url: its clone is in the place of {{ ternary "script" "launch.files" (not (empty $v.script)) }}; set one of them
{{- end }}
{{- if and (not $git.url) (or $git.ref $git.existingSecret $git.proxy $git.caBundle) }}
launch.git: it lacks the repository; set launch.git.url
{{- end }}
{{- end }}
