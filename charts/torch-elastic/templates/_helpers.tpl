{{- define "torch-elastic.script" -}}
{{- include "common.script" (dict "root" . "check" "files/allreduce.py") }}
{{- end }}

{{/*
Where the agents meet, as host:port[,host:port...].
*/}}
{{- define "torch-elastic.endpoint" -}}
{{- $fullname := include "common.fullname" (dict "root" .) }}
{{- if eq .Values.rendezvous.backend "c10d" }}
{{- printf "%s-0.%s.%s.svc:%d" (include "common.jobName" (dict "root" .)) $fullname .Release.Namespace (int64 .Values.rendezvous.port) }}
{{- else if .Values.rendezvous.endpoints }}
{{- join "," .Values.rendezvous.endpoints }}
{{- else if .Subcharts.etcd }}
{{- printf "%s.%s.svc:2379" (include "common.fullname" (dict "root" .Subcharts.etcd)) .Release.Namespace }}
{{- end }}
{{- end }}

{{/*
The Secret that holds the user of etcd, if one is needed.
*/}}
{{- define "torch-elastic.authSecret" -}}
{{- if eq .Values.rendezvous.backend "etcd" }}
{{- if .Values.rendezvous.endpoints }}
{{- .Values.rendezvous.auth.existingSecret }}
{{- else if dig "auth" "enabled" false .Values.etcd }}
{{- .Values.etcd.auth.existingSecret }}
{{- end }}
{{- end }}
{{- end }}

{{/*
How agents show themselves to etcd, as JSON {secret, certificate}; no secret, no TLS.
*/}}
{{- define "torch-elastic.etcdTls" -}}
{{- $tls := .Values.rendezvous.tls }}
{{- if ne .Values.rendezvous.backend "etcd" }}
{{- dict "secret" "" "certificate" false | toJson }}
{{- else if .Values.rendezvous.endpoints }}
{{- dict "secret" $tls.existingSecret "certificate" $tls.clientCertificate | toJson }}
{{- else if .Subcharts.etcd }}
{{- include "etcd.clientTls" .Subcharts.etcd }}
{{- end }}
{{- end }}

{{/*
What a client of etcd reads: files of TLS and a user, where there are any.
*/}}
{{- define "torch-elastic.etcdEnv" -}}
{{- include "common.etcdTls.env" (include "torch-elastic.etcdTls" . | fromJson) }}
{{- with include "torch-elastic.authSecret" . }}
- name: BIREME_ETCD_USERNAME
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: username}
- name: BIREME_ETCD_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: password}
{{- end }}
{{- end }}

{{/*
What the agents read, as a list of EnvVar. Nothing here depends on the number of workers.
Arguments: root, worker.
*/}}
{{- define "torch-elastic.agentEnv" -}}
{{- $v := .root.Values }}
{{- $conf := list }}
{{- range $key, $value := $v.rendezvous.conf }}{{ $conf = append $conf (printf "%s=%s" $key (include "common.text" (dict "value" $value))) }}{{ end -}}
- {name: PET_NNODES, value: "{{ int64 $v.minWorkers }}:{{ int64 $v.maxWorkers }}"}
- {name: PET_NPROC_PER_NODE, value: "{{ int64 .worker.processes }}"}
- {name: PET_RDZV_BACKEND, value: {{ ternary "bireme-etcd" "c10d" (eq $v.rendezvous.backend "etcd") }}}
- {name: PET_RDZV_ENDPOINT, value: {{ include "torch-elastic.endpoint" .root | quote }}}
- {name: PET_RDZV_CONF, value: {{ join "," $conf | quote }}}
- name: PET_RDZV_ID
  valueFrom:
    fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}
- name: PET_LOCAL_ADDR
  valueFrom:
    fieldRef: {fieldPath: status.podIP}
- {name: PET_MAX_RESTARTS, value: "{{ int64 $v.maxRestarts }}"}
- {name: PET_MONITOR_INTERVAL, value: "{{ $v.monitorInterval }}"}
- {name: BIREME_AGENT_RESTARTS, value: "{{ int64 $v.agentRestarts }}"}
- {name: BIREME_WAIT_SECONDS, value: "{{ int64 $v.waitSeconds }}"}
- {name: BIREME_GRACE_SECONDS, value: "{{ max 1 (sub (int64 $v.terminationGracePeriodSeconds) 10) }}"}
{{- include "torch-elastic.etcdEnv" .root | nindent 0 }}
{{- end }}
