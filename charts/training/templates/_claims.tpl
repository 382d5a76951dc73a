{{/*
The name of the volume for a claim, empty if `claims` does not list it. A claim has one volume, even if it is mounted
several times.
Arguments: root (values claims), claimName.
*/}}
{{- define "training.claimVolume" -}}
{{- $wanted := required "training.claimVolume needs claimName" .claimName }}
{{- $names := list }}
{{- range (required "training.claimVolume needs root" .root).Values.claims }}{{ $names = append $names .claimName }}{{ end }}
{{- range $i, $name := uniq $names }}
{{- if eq $name $wanted }}claim-{{ $i }}{{ end }}
{{- end }}
{{- end }}

{{/*
Volumes of the claims.
Arguments: root (values claims).
*/}}
{{- define "training.claimVolumes" -}}
{{- $root := required "training.claimVolumes needs root" .root }}
{{- $names := list }}
{{- range $root.Values.claims }}{{ $names = append $names .claimName }}{{ end }}
{{- range uniq $names }}
- name: {{ include "training.claimVolume" (dict "root" $root "claimName" .) | quote }}
  persistentVolumeClaim:
    claimName: {{ . | quote }}
{{- end }}
{{- end }}

{{/*
Mounts of the claims.
Arguments: root (values claims), readOnly (true mounts all of them read-only).
*/}}
{{- define "training.claimMounts" -}}
{{- $root := required "training.claimMounts needs root" .root }}
{{- $readOnly := .readOnly }}
{{- range $root.Values.claims }}
- name: {{ include "training.claimVolume" (dict "root" $root "claimName" .claimName) | quote }}
  mountPath: {{ .mountPath | quote }}
  {{- with .subPath }}
  subPath: {{ . | quote }}
  {{- end }}
  {{- if or $readOnly .readOnly }}
  readOnly: true
  {{- end }}
{{- end }}
{{- end }}
