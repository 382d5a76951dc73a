{{/*
Everything of the Job's spec that Kubernetes will not change in place. job.yaml has the rest.
*/}}
{{- define "torch-elastic.run" -}}
{{- $worker := include "common.worker" (dict "root" .) | fromJson }}
{{- $etcdTls := include "torch-elastic.etcdTls" . | fromJson }}
{{- $script := include "torch-elastic.scriptSource" . -}}
completionMode: Indexed
backoffLimitPerIndex: {{ int64 .Values.backoffLimitPerIndex }}
podReplacementPolicy: Failed
podFailurePolicy:
  rules:
    # A drain, a preemption or a lost node is not the worker's fault.
    - action: Ignore
      onPodConditions:
        - {type: DisruptionTarget, status: "True"}
    # The exit codes by which the agent says that no restart can help (docs/runtime.md).
    - action: FailJob
      onExitCodes: {containerName: trainer, operator: In, values: [64, 78]}
    {{- include "common.datasetFailures" (dict "root" .) | nindent 4 }}
successPolicy:
  rules:
    # A worker exits 0 only when the run succeeded, so one is enough.
    - succeededCount: 1
template:
  metadata:
    labels:
      {{- include "common.selectorLabels" (dict "root" . "component" "worker") | nindent 6 }}
      {{- with .Values.podLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with .Values.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    restartPolicy: Never
    subdomain: {{ include "common.fullname" (dict "root" .) }}
    terminationGracePeriodSeconds: {{ int64 .Values.terminationGracePeriodSeconds }}
    automountServiceAccountToken: false
    enableServiceLinks: false
    serviceAccountName: {{ include "common.serviceAccountName" (dict "root" .) }}
    {{- include "common.imagePullSecrets" (dict "root" .) | nindent 4 }}
    securityContext:
      {{- toYaml .Values.podSecurityContext | nindent 6 }}
    {{- include "common.workerNodeSelector" (dict "root" . "worker" $worker) | nindent 4 }}
    {{- include "common.workerTolerations" (dict "root" . "worker" $worker) | nindent 4 }}
    {{- include "common.scheduling" (dict "root" .) | nindent 4 }}
    {{- if or .Values.verify.paths .Values.staging.claimName }}
    initContainers:
      {{- include "common.verify.container" (dict "root" .) | nindent 6 }}
      {{- include "common.staging.container" (dict "root" .) | nindent 6 }}
    {{- end }}
    containers:
      - name: trainer
        image: {{ include "common.image" (dict "root" . "image" .Values.image) }}
        imagePullPolicy: {{ .Values.image.pullPolicy }}
        {{- if .Values.command }}
        command:
          {{- toYaml .Values.command | nindent 10 }}
        {{- else }}
        command: [{{ .Values.python }}, -m, bireme_runtime.agent, --]
        {{- end }}
        {{- with concat (ternary (list "/bireme/script/train.py") list (not (empty $script))) .Values.args }}
        args:
          {{- range . }}
          - {{ include "common.text" (dict "value" .) | quote }}
          {{- end }}
        {{- end }}
        {{- include "common.env" (dict "root" .
            "fixed" (include "torch-elastic.agentEnv" (dict "root" . "worker" $worker) | fromYamlArray)
            "derived" (include "torch-elastic.derivedEnv" (dict "worker" $worker) | fromJson)) | nindent 8 }}
        {{- include "common.workerResources" (dict "root" . "worker" $worker) | nindent 8 }}
        securityContext:
          {{- toYaml .Values.securityContext | nindent 10 }}
        volumeMounts:
          - {name: shm, mountPath: /dev/shm}
          - {name: runtime, mountPath: /bireme/runtime, readOnly: true}
          {{- if $script }}
          - {name: script, mountPath: /bireme/script, readOnly: true}
          {{- end }}
          {{- include "common.etcdTls.mount" $etcdTls | nindent 10 }}
          {{- include "common.claimMounts" (dict "root" . "readOnly" false) | nindent 10 }}
          {{- include "common.staging.mount" (dict "root" .) | nindent 10 }}
          {{- with .Values.extraVolumeMounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      - name: shm
        emptyDir: {medium: Memory, sizeLimit: {{ $worker.shm }}}
      {{- include "common.runtimeVolume" (dict "root" .) | nindent 6 }}
      {{- if $script }}
      - name: script
        configMap: {name: {{ include "torch-elastic.scriptName" . }}}
      {{- end }}
      {{- include "common.etcdTls.volume" $etcdTls | nindent 6 }}
      {{- include "common.claimVolumes" (dict "root" .) | nindent 6 }}
      {{- include "common.staging.volumes" (dict "root" .) | nindent 6 }}
      {{- with .Values.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end }}

{{- define "torch-elastic.immutableParts" -}}
{{- include "common.immutable.jobParts" (dict "spec" (include "torch-elastic.run" . | fromYaml)) }}
{{- end }}
