{{/*
Ranks by the network: an init container reads the labels of the pod's node and leaves them for the worker. A pod sees no
label of its node but region and zone, so it asks the API server. The training container has no token.
*/}}

{{- define "torch-elastic.topology" -}}
{{- if eq .Values.rendezvous.order "topology" }}true{{ end }}
{{- end }}

{{- define "torch-elastic.topology.clusterName" -}}
{{- printf "%s.%s" .Release.Namespace (include "common.fullname" (dict "root" .)) }}
{{- end }}

{{- define "torch-elastic.topology.container" -}}
{{- if include "torch-elastic.topology" . -}}
- name: topology
  image: {{ include "common.image" (dict "root" . "image" .Values.image) | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy | quote }}
  command: [{{ .Values.launch.python | quote }}, -m, bireme_runtime.elastic.rendezvous.topology]
  env:
    - {name: PYTHONPATH, value: /bireme/runtime}
    - {name: BIREME_TOPOLOGY_LABELS, value: {{ join "," .Values.rendezvous.topologyLabels | quote }}}
    - {name: BIREME_TOPOLOGY_FILE, value: /bireme/topology/place}
    - name: BIREME_NODE
      valueFrom:
        fieldRef: {fieldPath: spec.nodeName}
  resources:
    {{- toYaml .Values.pod.helperResources | nindent 4 }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    - {name: runtime, mountPath: /bireme/runtime, readOnly: true}
    - {name: topology, mountPath: /bireme/topology}
    - {name: api-server, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}
{{- end }}

{{- define "torch-elastic.topology.mount" -}}
{{- if include "torch-elastic.topology" . -}}
- {name: topology, mountPath: /bireme/topology, readOnly: true}
{{- end }}
{{- end }}

{{- define "torch-elastic.topology.volumes" -}}
{{- if include "torch-elastic.topology" . -}}
- name: topology
  emptyDir: {sizeLimit: 1Mi}
- name: api-server
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 600}
      - configMap:
          name: kube-root-ca.crt
          items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end }}
