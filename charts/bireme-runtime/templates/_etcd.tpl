{{/*
The TLS files of a client of etcd, as the variables that bireme_runtime.etcd reads.
Arguments: secret (with ca.crt, or empty for no TLS), certificate (whether the client sends tls.crt of that Secret).
*/}}
{{- define "runtime.etcdTls.env" -}}
{{- if .secret -}}
- {name: BIREME_ETCD_CACERT, value: /bireme/etcd-tls/ca.crt}
{{- if .certificate }}
- {name: BIREME_ETCD_CERT, value: /bireme/etcd-tls/tls.crt}
- {name: BIREME_ETCD_KEY, value: /bireme/etcd-tls/tls.key}
{{- end }}
{{- end }}
{{- end }}

{{- define "runtime.etcdTls.mount" -}}
{{- if .secret -}}
- {name: etcd-tls, mountPath: /bireme/etcd-tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "runtime.etcdTls.volume" -}}
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
