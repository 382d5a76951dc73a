{{/*
The shard dispatcher of a job (docs/dispatcher.md): a Deployment, its Service, and what training scripts read.
*/}}

{{/*
The name of its objects.
Arguments: root.
*/}}
{{- define "training.dispatcher.name" -}}
{{- printf "%s-dispatcher" (include "common.fullname" (dict "root" (required "training.dispatcher.name needs root" .root))) }}
{{- end }}

{{/*
The variables with which a training script finds its shards, as a list of EnvVar.
Arguments: root, dataset (the dataset's name; optional: the uid of the pod's Job, so that a new run trains all shards again).
*/}}
{{- define "training.dispatcher.env" -}}
{{- $root := required "training.dispatcher.env needs root" .root -}}
- {name: BIREME_DISPATCHER, value: "{{ include "training.dispatcher.name" (dict "root" $root) }}.{{ $root.Release.Namespace }}.svc:7190"}
{{- if .dataset }}
- {name: BIREME_DISPATCHER_DATASET, value: {{ .dataset | quote }}}
{{- else }}
- name: BIREME_DISPATCHER_DATASET
  valueFrom:
    fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}
{{- end }}
{{- end }}

{{/*
Its replicas.
Arguments: root (values data, imagePullSecrets, podSecurityContext, securityContext), etcd (the result of
training.etcdClient).
*/}}
{{- define "training.dispatcher.deployment" -}}
{{- $root := required "training.dispatcher.deployment needs root" .root }}
{{- $etcd := required "training.dispatcher.deployment needs etcd" .etcd }}
{{- $v := $root.Values }}
{{- $d := $v.data.dispatcher -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "training.dispatcher.name" (dict "root" $root) | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" "dispatcher") | nindent 4 }}
spec:
  replicas: {{ int64 $d.replicas }}
  selector:
    matchLabels:
      {{- include "common.selectorLabels" (dict "root" $root "component" "dispatcher") | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "common.selectorLabels" (dict "root" $root "component" "dispatcher") | nindent 8 }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      nodeSelector: {kubernetes.io/os: linux}
      {{- include "common.imagePullSecrets" (dict "root" $root) | nindent 6 }}
      securityContext:
        {{- toYaml $v.podSecurityContext | nindent 8 }}
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels:
                    {{- include "common.selectorLabels" (dict "root" $root "component" "dispatcher") | nindent 20 }}
      containers:
        - name: dispatcher
          image: {{ include "common.image" (dict "root" $root "image" $d.image) | quote }}
          imagePullPolicy: {{ $d.image.pullPolicy | quote }}
          command: [python3, -m, bireme_runtime.dispatcher, serve]
          env:
            - name: POD_IP
              valueFrom:
                fieldRef: {fieldPath: status.podIP}
            - {name: PYTHONPATH, value: /bireme/runtime}
            - {name: PYTHONUNBUFFERED, value: "1"}
            - {name: BIREME_ETCD_ENDPOINTS, value: {{ $etcd.endpoint | quote }}}
            - {name: BIREME_DISPATCHER_PREFIX, value: "/bireme/dispatcher/{{ $root.Release.Namespace }}/{{ include "common.fullname" (dict "root" $root) }}/"}
            - {name: BIREME_DISPATCHER_LEADER_SECONDS, value: "{{ int64 $d.leaderSeconds }}"}
            - {name: BIREME_DISPATCHER_TRAINER_SECONDS, value: "{{ int64 $d.trainerSeconds }}"}
            {{- include "training.etcdClient.env" $etcd | nindent 12 }}
            {{- include "training.token.env" (dict "root" $root) | nindent 12 }}
          ports:
            - {name: http, containerPort: 7190}
          # Every replica is Ready: those that do not lead redirect clients to the leader.
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 2
          livenessProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          {{- with $d.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            {{- toYaml $v.securityContext | nindent 12 }}
          volumeMounts:
            - {name: runtime, mountPath: /bireme/runtime, readOnly: true}
            {{- include "runtime.etcdTls.mount" $etcd | nindent 12 }}
      volumes:
        {{- include "runtime.volume" (dict "root" $root "component" "dispatcher") | nindent 8 }}
        {{- include "runtime.etcdTls.volume" $etcd | nindent 8 }}
{{- end }}

{{/*
Its Service.
Arguments: root.
*/}}
{{- define "training.dispatcher.service" -}}
{{- $root := required "training.dispatcher.service needs root" .root -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "training.dispatcher.name" (dict "root" $root) | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" "dispatcher") | nindent 4 }}
spec:
  type: ClusterIP
  selector:
    {{- include "common.selectorLabels" (dict "root" $root "component" "dispatcher") | nindent 4 }}
  ports:
    - {name: http, port: 7190, targetPort: http}
{{- end }}

{{/*
The rules of a dispatcher that has its etcd by the values etcd.enabled and data.dispatcher.etcd.
Arguments: root (values data, etcd), enabled (whether there is a dispatcher), what and value (words for it, and the
value that turns it on).
*/}}
{{- define "training.rules.dispatcher" }}
{{- $v := (required "training.rules.dispatcher needs root" .root).Values }}
{{- $what := required "training.rules.dispatcher needs what" .what }}
{{- if and (not .enabled) $v.etcd.enabled }}
etcd.enabled: only {{ $what }} uses etcd; set etcd.enabled=false, or {{ required "training.rules.dispatcher needs value" .value }}
{{- end }}
{{- if and .enabled (not $v.etcd.enabled) (not $v.data.dispatcher.etcd.endpoints) }}
etcd.enabled: {{ $what }} keeps its state in etcd; set etcd.enabled=true, or data.dispatcher.etcd.endpoints to an etcd that exists
{{- end }}
{{- if and $v.etcd.enabled $v.data.dispatcher.etcd.endpoints }}
data.dispatcher.etcd.endpoints: the release's own etcd would stay unused; set etcd.enabled=false with endpoints of your own, or leave them out
{{- end }}
{{ include "training.rules.dispatcherClaim" (dict "root" .root "enabled" .enabled) }}
{{- end }}

{{/*
The rule that the dispatcher's state is on a claim.
Arguments: root (values etcd), enabled.
*/}}
{{- define "training.rules.dispatcherClaim" }}
{{- $v := (required "training.rules.dispatcherClaim needs root" .root).Values }}
{{- if and .enabled $v.etcd.enabled (not (dig "persistence" "enabled" true $v.etcd)) }}
etcd.persistence.enabled: without a claim the dispatcher forgets which shards are done when etcd restarts; set it to true
{{- end }}
{{- end }}
