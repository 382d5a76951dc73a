{{/*
What a client of etcd needs, as JSON {endpoint (host:port[,host:port...]), user (Secret), secret, certificate}, the last two
as for TLS below. It is empty when there is no etcd.
Arguments: root (with the etcd chart as a dependency), endpoints (list, empty for the release's own etcd), and what goes
with the endpoints: user (Secret with username and password), secret, certificate (all optional).
*/}}
{{- define "common.etcdClient" -}}
{{- $root := required "common.etcdClient needs root" .root }}
{{- if .endpoints }}
{{- dict "endpoint" (join "," .endpoints) "user" .user "secret" .secret "certificate" .certificate | toJson }}
{{- else if $root.Subcharts.etcd }}
{{- $auth := $root.Values.etcd.auth | default dict }}
{{- $client := include "etcd.clientTls" $root.Subcharts.etcd | fromJson }}
{{- $_ := set $client "endpoint" (printf "%s.%s.svc:2379" (include "common.fullname" (dict "root" $root.Subcharts.etcd)) $root.Release.Namespace) }}
{{- set $client "user" (ternary $auth.existingSecret "" ($auth.enabled | default false)) | toJson }}
{{- else }}{}
{{- end }}
{{- end }}

{{/*
The variables with which a client identifies itself to etcd.
Arguments: user, secret, certificate (see common.etcdClient).
*/}}
{{- define "common.etcdClient.env" -}}
{{- include "common.etcdTls.env" . }}
{{- with .user }}
- name: BIREME_ETCD_USERNAME
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: username}
- name: BIREME_ETCD_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: password}
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
    secretName: {{ .secret }}
    items:
      - {key: ca.crt, path: ca.crt}
      {{- if .certificate }}
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
      {{- end }}
{{- end }}
{{- end }}
