{{/*
TensorBoard beside a job. It reads the event files from the job's claims.
Arguments: root (values monitoring, claims).
*/}}
{{- define "training.tensorboardDeployment" -}}
{{- $root := required "training.tensorboardDeployment needs root" .root }}
{{- $board := $root.Values.monitoring.tensorboard }}
{{- if $board.enabled -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "common.fullname" (dict "root" $root) }}-tensorboard
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" "tensorboard") | nindent 4 }}
spec:
  replicas: 1
  selector:
    matchLabels:
      {{- include "common.selectorLabels" (dict "root" $root "component" "tensorboard") | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "common.selectorLabels" (dict "root" $root "component" "tensorboard") | nindent 8 }}
    spec:
      {{- include "common.imagePullSecrets" (dict "root" $root) | nindent 6 }}
      automountServiceAccountToken: false
      {{- range $key := list "nodeSelector" "tolerations" "affinity" }}
      {{- with index $board $key }}
      {{- toYaml (dict $key .) | nindent 6 }}
      {{- end }}
      {{- end }}
      securityContext:
        {{- toYaml $root.Values.podSecurityContext | nindent 8 }}
      containers:
        - name: tensorboard
          image: {{ include "common.image" (dict "root" $root "image" $board.image) | quote }}
          imagePullPolicy: {{ $board.image.pullPolicy | quote }}
          command: [tensorboard, {{ printf "--logdir=%s" $board.logDir | quote }}, --bind_all, --port=6006]
          env:
            - {name: HOME, value: /tmp}
          ports:
            - {name: http, containerPort: 6006}
          readinessProbe:
            httpGet: {path: /, port: http}
          resources:
            {{- toYaml $board.resources | nindent 12 }}
          securityContext:
            {{- toYaml $root.Values.securityContext | nindent 12 }}
          volumeMounts:
            {{- include "training.claimMounts" (dict "root" $root "readOnly" true) | nindent 12 }}
      volumes:
        {{- include "training.claimVolumes" (dict "root" $root) | nindent 8 }}
{{- end }}
{{- end }}

{{/*
Its Service.
Arguments: root.
*/}}
{{- define "training.tensorboardService" -}}
{{- $root := required "training.tensorboardService needs root" .root }}
{{- $service := $root.Values.monitoring.tensorboard.service }}
{{- if $root.Values.monitoring.tensorboard.enabled -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "common.fullname" (dict "root" $root) }}-tensorboard
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" "tensorboard") | nindent 4 }}
  {{- with $service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ $service.type }}
  {{- with $service.loadBalancerSourceRanges }}
  loadBalancerSourceRanges:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  selector:
    {{- include "common.selectorLabels" (dict "root" $root "component" "tensorboard") | nindent 4 }}
  ports:
    - {name: http, port: {{ int64 $service.port }}, targetPort: http}
{{- end }}
{{- end }}

{{/*
Ingress rules of a job, in YAML: for observers, a load balancer, and for all where pods have the address of their node.
Arguments: root, ports (of the observers), hostNetwork (of another pod).
*/}}
{{- define "training.ingress" -}}
{{- $v := (required "training.ingress needs root" .root).Values }}
{{- include "common.networkPolicy.from" (dict "ports" .ports "from" $v.networkPolicy.observers) }}
{{- with $v.monitoring.tensorboard }}
{{ if and .enabled (ne .service.type "ClusterIP") }}{{ include "common.networkPolicy.open" (dict "port" 6006) }}{{ end }}
{{- end }}
{{ if or $v.pod.hostNetwork .hostNetwork }}- {}{{ end }}
{{- end }}

{{/*
TensorBoard reads a folder that is on a claim, and is not open to the internet by accident.
Arguments: root.
*/}}
{{- define "training.rules.tensorboard" -}}
{{- $v := (required "training.rules.tensorboard needs root" .root).Values }}
{{- $under := false }}
{{- range $v.claims }}
{{- if or (eq .mountPath $v.monitoring.tensorboard.logDir) (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) $v.monitoring.tensorboard.logDir) }}{{ $under = true }}{{ end }}
{{- end }}
{{- if and $v.monitoring.tensorboard.enabled (not $under) }}
monitoring.tensorboard.logDir: {{ $v.monitoring.tensorboard.logDir | default "(not set)" }} is not on one of the claims; mount a claim there, or set logDir to a folder on one
{{- end }}
{{- $service := $v.monitoring.tensorboard.service }}
{{- if and (eq $service.type "LoadBalancer") (not $service.loadBalancerSourceRanges) }}
monitoring.tensorboard.service.loadBalancerSourceRanges: TensorBoard asks for no password, and the load balancer would be open to all; name the networks that may reach it, e.g. [192.0.2.0/24]
{{- end }}
{{- if and $service.loadBalancerSourceRanges (ne $service.type "LoadBalancer") }}
monitoring.tensorboard.service.loadBalancerSourceRanges: a Service of type {{ $service.type }} does not look at them; set monitoring.tensorboard.service.type=LoadBalancer, or leave them out
{{- end }}
{{- end }}
