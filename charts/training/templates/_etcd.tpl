{{/*
How clients connect to etcd, as JSON {endpoint (host:port[,host:port...]), user, secret, certificate, loginMs}; {} if there is no
etcd. loginMs is what a login costs etcd, in milliseconds, where the chart has made the password. With endpoints it repeats its
arguments, without them it describes the release's own etcd.
Arguments: root (of a chart that depends on the etcd chart), endpoints (list, may be empty), user (Secret with username
and password, optional), secret and certificate (as for runtime.etcdTls, optional).
*/}}
{{- define "training.etcdClient" -}}
{{- $root := required "training.etcdClient needs root" .root }}
{{- if .endpoints }}
{{- dict "endpoint" (join "," .endpoints) "user" .user "secret" .secret "certificate" .certificate | toJson }}
{{- else if $root.Subcharts.etcd }}
{{- $client := include "etcd.clientTls" $root.Subcharts.etcd | fromJson }}
{{- $_ := set $client "endpoint" (include "etcd.endpoints" $root.Subcharts.etcd) }}
{{- if include "etcd.makesPassword" $root.Subcharts.etcd }}{{ $_ := set $client "loginMs" 3 }}{{ end }}
{{- set $client "user" (include "etcd.userSecret" $root.Subcharts.etcd) | toJson }}
{{- else }}{}
{{- end }}
{{- end }}

{{/*
The variables with which a client identifies itself to etcd.
Arguments: user, secret, certificate, loginMs (see training.etcdClient).
*/}}
{{- define "training.etcdClient.env" -}}
{{- include "runtime.etcdTls.env" . }}
{{- with .user }}
- name: BIREME_ETCD_USERNAME
  valueFrom:
    secretKeyRef: {name: {{ . | quote }}, key: username}
- name: BIREME_ETCD_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ . | quote }}, key: password}
{{- end }}
{{- with .loginMs }}
- {name: BIREME_ETCD_LOGIN_MS, value: "{{ . }}"}
{{- end }}
{{- end }}
