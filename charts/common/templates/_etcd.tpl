{{/*
How a pod shows itself to an etcd that speaks TLS; bireme_runtime.etcd reads these variables. All three take
secret (with ca.crt; without one there is no TLS) and certificate (whether the Secret's tls.crt is sent too).
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
