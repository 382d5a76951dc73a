{{/*
The facts of training.facts, and:
  autoscale   what the controller reads on the Job (training.autoscale)
  etcd        the etcd in which workers meet (training.etcdClient); empty with backend c10d
*/}}
{{- define "torch-elastic.facts" -}}
{{- include "training.facts" (dict "root" .) }}
{{- if not (hasKey .Facts "etcd") }}
{{- $_ := set .Facts "autoscale" (include "torch-elastic.autoscale" . | fromJson) }}
{{- $_ := set .Facts "etcd" (include "torch-elastic.etcd" . | fromJson) }}
{{- end }}
{{- end }}

{{- define "torch-elastic.script" -}}
{{- include "training.script" (dict "root" . "check" "files/allreduce.py") }}
{{- end }}

{{/*
The command that starts the workers' processes, as a JSON list. Kubernetes takes $$ for a $.
*/}}
{{- define "torch-elastic.entryPoint" -}}
{{- if include "training.hasRuntime" (dict "root" .) }}
{{- toJson (list .Values.launch.python "-m" "bireme_runtime.elastic.agent.supervisor" "--") }}
{{- else }}
{{- toJson (list "sh" "-ec" (.Files.Get "files/torchrun.sh" | replace "$" "$$") .Values.launch.python) }}
{{- end }}
{{- end }}

{{/*
The etcd in which workers meet, as the JSON of training.etcdClient, or nothing with backend c10d. Other templates read Facts.etcd.
*/}}
{{- define "torch-elastic.etcd" -}}
{{- $v := .Values.rendezvous }}
{{- if eq $v.backend "etcd" }}
{{- include "training.etcdClient" (dict "root" . "endpoints" $v.endpoints "user" $v.auth.existingSecret "secret" $v.tls.existingSecret "certificate" $v.tls.clientCertificate) }}
{{- else }}{}
{{- end }}
{{- end }}

{{/*
What would make so many workers safer, as a line.
*/}}
{{- define "torch-elastic.advice" -}}
{{- if and .Values.etcd.enabled (ge (int64 .Values.workers) 8) (eq (int64 .Values.etcd.replicas) 1) }}
Its etcd has one member: a node that is lost with it is a restart of all workers. For so many workers set etcd.replicas=3.
{{- end }}
{{- end }}

{{/*
The address at which workers meet: that of etcd, or of worker 0.
*/}}
{{- define "torch-elastic.endpoint" -}}
{{- $worker := printf "%s-0.%s" (include "common.jobName" (dict "root" .)) (include "common.fullname" (dict "root" .)) }}
{{- include "torch-elastic.facts" . }}
{{- .Facts.etcd.endpoint | default (printf "%s.%s.svc:%d" $worker .Release.Namespace (int64 .Values.rendezvous.port)) }}
{{- end }}

{{/*
The variables that agents read, as a list of EnvVar. None depends on the number of workers, so that scaling changes no pod.
Arguments: root, worker (see training.facts).
*/}}
{{- define "torch-elastic.env" -}}
{{- $v := .root.Values }}
{{- $conf := list }}
{{- $etcd := eq $v.rendezvous.backend "etcd" }}
{{- if and $etcd (not (hasKey $v.rendezvous.conf "first_call_timeout")) }}{{ $conf = append $conf (printf "first_call_timeout=%d" (int64 $v.rendezvous.firstRoundSeconds)) }}{{ end }}
{{- range $key, $value := $v.rendezvous.conf }}{{ $conf = append $conf (printf "%s=%s" $key (include "training.text" (dict "value" $value))) }}{{ end -}}
- {name: PET_NNODES, value: "{{ int64 $v.elastic.minWorkers }}:{{ int64 $v.elastic.maxWorkers }}"}
- {name: PET_NPROC_PER_NODE, value: "{{ int64 .worker.processes }}"}
- {name: PET_RDZV_BACKEND, value: {{ ternary "bireme-etcd" "c10d" (eq $v.rendezvous.backend "etcd") | quote }}}
- {name: PET_RDZV_ENDPOINT, value: {{ include "torch-elastic.endpoint" .root | quote }}}
- {name: PET_RDZV_CONF, value: {{ join "," $conf | quote }}}
- name: PET_RDZV_ID
  valueFrom:
    fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}
- name: PET_LOCAL_ADDR
  valueFrom:
    fieldRef: {fieldPath: status.podIP}
{{- /* A job that may go on with fewer workers does not end with one of them. */}}
{{ include "training.webhook.env" (dict "root" .root "ends" (list 0 64 70 78)
    "starts" (ternary $v.recovery.backoffLimitPerIndex nil (eq (int64 $v.elastic.minWorkers) (int64 $v.elastic.maxWorkers)))) }}
{{- if gt (int64 $v.elastic.workersPerUnit) 1 }}
- {name: BIREME_WORKERS_PER_UNIT, value: "{{ int64 $v.elastic.workersPerUnit }}"}
{{- end }}
{{- if $etcd }}
{{- with int64 $v.elastic.spares }}
- {name: BIREME_SPARES, value: "{{ . }}"}
{{- end }}
- {name: BIREME_WORKERS_FILE, value: /bireme/job/workers}
{{- if include "torch-elastic.topology" .root }}
- {name: BIREME_TOPOLOGY_FILE, value: /bireme/topology/place}
{{- end }}
# Runs with the same lock never train at the same time.
- {name: BIREME_LOCK, value: "{{ .root.Release.Namespace }}/{{ include "common.fullname" (dict "root" .root) }}"}
{{- end }}
{{- if ne $v.launch.launcher "torchrun" }}
- {name: BIREME_LAUNCHER, value: {{ $v.launch.launcher }}}
{{- with $v.launch.accelerate }}
# Kubernetes would replace $(NAME).
- {name: BIREME_ACCELERATE, value: {{ toJson . | replace "$(" "$$(" | quote }}}
{{- end }}
{{- end }}
- {name: PET_MAX_RESTARTS, value: "{{ int64 $v.recovery.maxRestarts }}"}
- {name: BIREME_FAILURES_WITHOUT_PROGRESS, value: "{{ int64 $v.recovery.failuresWithoutProgress }}"}
{{- with int64 $v.recovery.excludeNodeSeconds }}
- {name: BIREME_EXCLUDE_NODE_SECONDS, value: "{{ . }}"}
{{- end }}
{{- with $v.recovery.progress.pattern }}
- {name: BIREME_PROGRESS_PATTERN, value: {{ . | quote }}}
{{- end }}
- {name: BIREME_ON_NAN, value: {{ $v.recovery.progress.onNaN | quote }}}
- {name: BIREME_ON_SLOW, value: {{ $v.recovery.progress.onSlow | quote }}}
- {name: BIREME_HANG_SECONDS, value: "{{ int64 $v.recovery.hang.seconds }}"}
{{- if $v.recovery.hang.learnt }}
- {name: BIREME_HANG_LEARNT, value: "true"}
{{- end }}
- {name: BIREME_FIRST_STEP_SECONDS, value: "{{ int64 $v.recovery.hang.firstStepSeconds }}"}
- {name: BIREME_METRICS_PORT, value: "{{ int64 $v.monitoring.metrics.port }}"}
- name: BIREME_NODE
  valueFrom:
    fieldRef: {fieldPath: spec.nodeName}
- {name: PET_MONITOR_INTERVAL, value: "{{ $v.recovery.monitorInterval }}"}
- {name: BIREME_AGENT_RESTARTS, value: "{{ int64 $v.recovery.agentRestarts }}"}
{{- if $v.recovery.preflight.enabled }}
{{- if and (gt (int64 .worker.accelerators) 0) (eq .worker.resource "nvidia.com/gpu") }}
- {name: BIREME_PREFLIGHT_ACCELERATORS, value: "{{ int64 .worker.accelerators }}"}
{{- end }}
{{- include "torch-elastic.pairs" . }}
{{- with $v.recovery.preflight.folder }}
- {name: BIREME_PREFLIGHT_FOLDER, value: {{ . | quote }}}
- {name: BIREME_PREFLIGHT_FREE_MIB, value: "{{ int64 $v.recovery.preflight.freeMiB }}"}
- {name: BIREME_PREFLIGHT_WRITE_MIB, value: "{{ int64 $v.recovery.preflight.writeMiBps }}"}
{{- end }}
{{- end }}
{{- if $v.recovery.warmStart.enabled }}
- {name: BIREME_WARM_START, value: "true"}
{{- with $v.recovery.warmStart.modules }}
- {name: BIREME_WARM_MODULES, value: {{ join "," . | quote }}}
{{- end }}
{{- end }}
{{- include "torch-elastic.snapshots" . }}
- {name: BIREME_WAIT_SECONDS, value: "{{ int64 $v.launch.waitSeconds }}"}
{{- if eq $v.rendezvous.join "checkpoint" }}
- {name: BIREME_JOIN, value: checkpoint}
- {name: BIREME_JOIN_WAIT_SECONDS, value: "{{ int64 $v.rendezvous.joinWaitSeconds }}"}
{{- end }}
- {name: BIREME_JOIN_SECONDS, value: "{{ $v.rendezvous.joinSeconds }}"}
{{- $stop := $v.rendezvous.stopSeconds }}
- {name: BIREME_STOP_SECONDS, value: "{{ kindIs "invalid" $stop | ternary (ternary 0 0.5 $v.recovery.snapshots.enabled) $stop }}"}
- {name: BIREME_GRACE_SECONDS, value: "{{ max 1 (sub (int64 $v.pod.terminationGracePeriodSeconds) 10) }}"}
{{- if $v.data.dispatcher.enabled }}
{{ include "training.dispatcher.env" (dict "root" .root) }}
{{ include "training.token.env" (dict "root" .root) }}
{{- end }}
{{- include "training.hardwareEnv" (dict "root" .root "worker" .worker) }}
{{- include "torch-elastic.facts" .root }}
{{- include "training.etcdClient.env" .root.Facts.etcd | nindent 0 }}
{{- end }}

{{/*
Variables for the all-reduce between neighbours, in front of others.
Arguments: root, worker (see training.facts).
*/}}
{{- define "torch-elastic.pairs" -}}
{{- $v := .root.Values }}
{{- $wanted := and $v.pod.checkDevices (gt (int64 .worker.accelerators) 0) (eq .worker.resource "nvidia.com/gpu") }}
{{- if kindIs "bool" $v.recovery.preflight.pairs }}{{ $wanted = $v.recovery.preflight.pairs }}{{ end }}
{{- if and $wanted (eq $v.rendezvous.backend "etcd") (gt (int64 $v.elastic.maxWorkers) 1) }}
- {name: BIREME_PREFLIGHT_PAIRS, value: "true"}
{{- $least := $v.recovery.preflight.bandwidthGBps }}
{{- if and (kindIs "invalid" $least) (eq (int64 .worker.accelerators) (int64 .worker.whole)) }}
{{- $published := (.root.Subcharts.common.Files.Get "files/instance-types.yaml" | fromYaml).bandwidth }}
{{- with get (get $published (.worker.type | default "none" | trimPrefix "ml.") | default dict) (toString (int64 .worker.efa)) }}{{ $least = divf . 2 }}{{ end }}
{{- end }}
{{- with $least }}
- {name: BIREME_PREFLIGHT_BANDWIDTH, value: "{{ . }}"}
{{- end }}
{{- end }}
{{- end }}

{{/*
Variables for snapshots, in front of others.
Arguments: root, worker (see training.facts).
*/}}
{{- define "torch-elastic.snapshots" -}}
{{- $own := .root.Values.recovery.snapshots }}
{{- if $own.enabled }}
- {name: BIREME_SNAPSHOTS, value: /dev/shm/bireme-snapshots}
- {name: BIREME_SNAPSHOT_EVERY, value: "{{ int64 $own.every }}"}
- {name: BIREME_SNAPSHOT_COPIES, value: "{{ int64 $own.copies }}"}
- {name: BIREME_SNAPSHOT_BUDGET_MIB, value: "{{ int64 ($own.budgetMiB | default (div (include "common.MiB" (dict "quantity" .worker.shm) | int64) 2)) }}"}
{{- with $own.flush.folder }}
- {name: BIREME_SNAPSHOT_FLUSH, value: {{ . | quote }}}
- {name: BIREME_SNAPSHOT_FLUSH_EVERY, value: "{{ int64 $own.flush.every }}"}
{{- end }}
{{- end }}
{{- end }}

{{/*
The port at which the entry point tells of the run.
*/}}
{{- define "torch-elastic.ports" -}}
{{- if and .Values.monitoring.metrics.port (not .Values.launch.command) (include "training.hasRuntime" (dict "root" .)) -}}
- {name: metrics, containerPort: {{ int64 .Values.monitoring.metrics.port }}}
{{- end }}
{{- end }}

{{/*
The number of workers reaches the pods as a file: a variable would change the pods whenever the job is scaled.
*/}}
{{- define "torch-elastic.workers.mount" -}}
{{- if eq .Values.rendezvous.backend "etcd" -}}
- {name: job, mountPath: /bireme/job, readOnly: true}
{{- end }}
{{- end }}
{{- define "torch-elastic.workers.volume" -}}
{{- if eq .Values.rendezvous.backend "etcd" -}}
- name: job
  configMap: {name: {{ include "common.jobName" (dict "root" .) | quote }}}
{{- end }}
{{- end }}
