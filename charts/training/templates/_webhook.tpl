{{/*
The message to a web hook when a run has ended. The entry point of the pod that ends it sends it (bireme_runtime.process.webhook).
The address is a file of a Secret, so that neither the pod's environment nor its arguments have it.
*/}}

{{/*
Not empty when the values name a Secret with the address.
Arguments: root (values monitoring).
*/}}
{{- define "training.webhook" -}}
{{- (required "training.webhook needs root" .root).Values.monitoring.webhook.existingSecret }}
{{- end }}

{{/*
The variables that the entry point reads, as a list of EnvVar.
Arguments: root (values monitoring, run), ends (list of the exit codes after which the job starts no pod again), starts (optional: so many failed
starts of this pod are followed by the last one of the job).
*/}}
{{- define "training.webhook.env" -}}
{{- $root := required "training.webhook.env needs root" .root }}
{{- if include "training.webhook" . }}
{{- $run := dict "namespace" $root.Release.Namespace "release" $root.Release.Name "run" (int64 $root.Values.run) }}
{{- $about := dict "format" $root.Values.monitoring.webhook.format "file" "/bireme/webhook/url" "run" $run "ends" .ends }}
{{- if not (kindIs "invalid" .starts) }}{{ $_ := set $about "starts" (int64 .starts) }}{{ end }}
- name: BIREME_WEBHOOK
  value: {{ toJson $about | quote }}
- name: BIREME_FAILED_STARTS
  valueFrom:
    fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"}
{{- end }}
{{- end }}

{{- define "training.webhook.mount" -}}
{{- if include "training.webhook" . }}
- {name: webhook, mountPath: /bireme/webhook, readOnly: true}
{{- end }}
{{- end }}

{{- define "training.webhook.volume" -}}
{{- $root := required "training.webhook.volume needs root" .root }}
{{- with include "training.webhook" . }}
- name: webhook
  secret:
    secretName: {{ . | quote }}
    items:
      - {key: {{ $root.Values.monitoring.webhook.key | quote }}, path: url}
{{- end }}
{{- end }}

{{/*
The egress rule to the addresses of the values, in YAML. Web hooks are HTTPS.
Arguments: root (values monitoring, launch), addresses.
*/}}
{{- define "training.egress" -}}
{{- $git := (required "training.egress needs root" .root).Values.launch.git }}
{{- $hook := ternary "webhook:443" "" (not (empty (include "training.webhook" .))) }}
{{- include "common.networkPolicy.outside" (dict "addresses" (concat .addresses (list $hook $git.url $git.proxy))) }}
{{- end }}

{{/*
Somebody tells how the run ends.
Arguments: root, without (optional: the values that leave out who tells it).
*/}}
{{- define "training.rules.webhook" -}}
{{- if and .without (include "training.webhook" .) }}
monitoring.webhook: the entry point tells how a run ends, and {{ .without }} leaves it out; leave that out, or monitoring.webhook
{{- end }}
{{- end }}
