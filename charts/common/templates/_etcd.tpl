{{/*
How clients connect to etcd, as JSON {endpoint (host:port[,host:port...]), user, secret, certificate, loginMs}; {} if there is no
etcd. loginMs is what a login costs etcd, in milliseconds, where the chart has made the password. With endpoints it repeats its
arguments, without them it describes the release's own etcd.
Arguments: root (of a chart that depends on the etcd chart), endpoints (list, may be empty), user (Secret with username
and password, optional), secret and certificate (as for common.etcdTls, optional).
*/}}
{{- define "common.etcdClient" -}}
{{- $root := required "common.etcdClient needs root" .root }}
{{- if .endpoints }}
{{- dict "endpoint" (join "," .endpoints) "user" .user "secret" .secret "certificate" .certificate | toJson }}
{{- else if $root.Subcharts.etcd }}
{{- $client := include "etcd.clientTls" $root.Subcharts.etcd | fromJson }}
{{- $_ := set $client "endpoint" (include "etcd.endpoints" $root.Subcharts.etcd | fromJsonArray | join ",") }}
{{- if include "etcd.makesPassword" $root.Subcharts.etcd }}{{ $_ := set $client "loginMs" 3 }}{{ end }}
{{- set $client "user" (include "etcd.userSecret" $root.Subcharts.etcd) | toJson }}
{{- else }}{}
{{- end }}
{{- end }}

{{/*
The variables with which a client identifies itself to etcd.
Arguments: user, secret, certificate, loginMs (see common.etcdClient).
*/}}
{{- define "common.etcdClient.env" -}}
{{- include "common.etcdTls.env" . }}
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

{{/*
The TLS files of a client of etcd; bireme_runtime.etcd reads these variables.
Arguments: secret (with ca.crt; empty for no TLS), certificate (whether the client sends tls.crt of that Secret).
*/}}
{{- define "common.etcdTls.env" -}}
{{- if .secret -}}
- {name: BIREME_ETCD_CACERT, value: /bireme/etcd-tls/ca.crt}
{{- if .certificate }}
- {name: BIREME_ETCD_CERT, value: /bireme/etcd-tls/tls.crt}
- {name: BIREME_ETCD_KEY, value: /bireme/etcd-tls/tls.key}
{{- end }}
{{- end }}
{{- end }}

{{- define "common.etcdTls.mount" -}}
{{- if .secret -}}
- {name: etcd-tls, mountPath: /bireme/etcd-tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "common.etcdTls.volume" -}}
{{- if .secret -}}
- name: etcd-tls
  secret:
    secretName: {{ .secret | quote }}
    items:
      - {key: ca.crt, path: ca.crt}
      {{- if .certificate }}
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
      {{- end }}
{{- end }}
{{- end }}
