{{/*
The facts of training.facts, and:
  autoscale   what the controller reads on the Job (training.autoscale)
*/}}
{{- define "paddle.facts" -}}
{{- include "training.facts" (dict "root" .) }}
{{- if not (hasKey .Facts "autoscale") }}
{{- $_ := set .Facts "autoscale" (include "paddle.autoscale" . | fromJson) }}
{{- end }}
{{- end }}

{{- define "paddle.hasServers" -}}
{{- if ne .Values.paddle.mode "collective" }}true{{ end }}
{{- end }}

{{- define "paddle.isCollocated" -}}
{{- if and (include "paddle.hasServers" .) (eq .Values.paddle.topology "collocated") }}true{{ end }}
{{- end }}

{{/*
The number of pservers: with topology collocated, one for each trainer.
*/}}
{{- define "paddle.servers" -}}
{{- if not (include "paddle.hasServers" .) }}0{{ else if include "paddle.isCollocated" . }}{{ int64 .Values.workers }}{{ else }}{{ int64 .Values.paddle.pservers.count }}{{ end }}
{{- end }}

{{/*
The number of pods of pservers and trainers if Kueue admits them together, else 0.
*/}}
{{- define "paddle.group" -}}
{{- if and .Values.queue.name (eq .Values.queue.admission "whole") (include "paddle.hasServers" .) (not (include "paddle.isCollocated" .)) -}}
{{- add (int64 .Values.workers) (int64 .Values.paddle.pservers.count) }}
{{- else }}0{{ end }}
{{- end }}

{{/*
The number of pods that a gang starts together: pservers, and as many trainers as the job begins with.
*/}}
{{- define "paddle.gang" -}}
{{- $servers := ternary .Values.paddle.pservers.count 0 (and (not (empty (include "paddle.hasServers" .))) (empty (include "paddle.isCollocated" .))) }}
{{- add (int64 $servers) (include "paddle.counted" . | int64) }}
{{- end }}

{{- /* Others read Facts.autoscale. */}}
{{- define "paddle.autoscale" -}}
{{- include "training.autoscale" (dict "root" . "least" 1 "most" .Values.workers) }}
{{- end }}

{{/*
The trainers that the end of a run waits for. With autoscale more may come and go: the shards of all are done when these
have found none left.
*/}}
{{- define "paddle.counted" -}}
{{- include "paddle.facts" . }}
{{- include "training.autoscale.least" (dict "root" . "policy" .Facts.autoscale) }}
{{- end }}

{{- define "paddle.serverService" -}}
{{- printf "%s%s" (include "common.fullname" (dict "root" .)) (ternary "" "-ps" (not (empty (include "paddle.isCollocated" .)))) }}
{{- end }}

{{- define "paddle.serverJob" -}}
{{- if include "paddle.isCollocated" . }}{{ include "common.jobName" (dict "root" .) }}
{{- else }}{{ printf "%s-ps-r%d" (include "common.fullname" (dict "root" .)) (int64 .Values.run) }}
{{- end }}
{{- end }}

{{- define "paddle.dataJob" -}}
{{- printf "%s-data-r%d" (include "common.fullname" (dict "root" .)) (int64 .Values.run) }}
{{- end }}

{{- define "paddle.settings" -}}
{{- printf "%s-settings" (include "common.fullname" (dict "root" .)) }}
{{- end }}

{{- define "paddle.claim" -}}
{{- .Values.data.jobClaim.existingClaim | default (printf "%s-job" (include "common.fullname" (dict "root" .))) }}
{{- end }}

{{- define "paddle.jobName" -}}
{{- .Values.data.jobName | default (include "common.fullname" (dict "root" .)) }}
{{- end }}

{{/*
The job's folder on its claim, for data, output and the state of the run.
*/}}
{{- define "paddle.folder" -}}
{{- printf "%s/%s" (trimSuffix "/" .Values.data.jobPath) (include "paddle.jobName" .) }}
{{- end }}

{{/*
The addresses of a Job's pods, separated by commas.
Arguments: root, job, service, count, port (empty for host names alone).
*/}}
{{- define "paddle.hosts" -}}
{{- $hosts := list }}
{{- range $index := until (int .count) }}
{{- $host := printf "%s-%d.%s.%s.svc" $.job $index $.service $.root.Release.Namespace }}
{{- $hosts = append $hosts (compact (list $host $.port) | join ":") }}
{{- end }}
{{- join "," $hosts }}
{{- end }}

{{/*
Those of the pservers.
Arguments: root, port (empty for host names alone).
*/}}
{{- define "paddle.serverHosts" -}}
{{- include "paddle.hosts" (dict "root" .root "port" .port
    "job" (include "paddle.serverJob" .root)
    "service" (include "paddle.serverService" .root)
    "count" (include "paddle.servers" .root)) }}
{{- end }}

{{/*
Those of the trainers.
Arguments: root, port (empty for host names alone).
*/}}
{{- define "paddle.trainerHosts" -}}
{{- include "paddle.hosts" (dict "root" .root "port" .port
    "job" (include "common.jobName" (dict "root" .root))
    "service" (include "common.fullname" (dict "root" .root))
    "count" (include "paddle.counted" .root)) }}
{{- end }}

{{/*
The address of the pod that coordinates the run: pserver 0, or worker 0 with mode collective.
*/}}
{{- define "paddle.coordinator" -}}
{{- printf "%s-0.%s.%s.svc:%d" (ternary (include "paddle.serverJob" .) (include "common.jobName" (dict "root" .)) (not (empty (include "paddle.hasServers" .))))
    (ternary (include "paddle.serverService" .) (include "common.fullname" (dict "root" .)) (not (empty (include "paddle.hasServers" .)))) .Release.Namespace (int64 .Values.paddle.controlPort) }}
{{- end }}

{{/*
The root with the values of a role, kept in the root as Views.ROLE. Prints nothing. Facts of the view are the role's.
Arguments: root, role (server or trainer).
*/}}
{{- define "paddle.view" -}}
{{- if not (hasKey .root "Views") }}{{ $_ := set .root "Views" dict }}{{ end }}
{{- if not (hasKey .root.Views .role) }}
{{- $values := deepCopy .root.Values }}
{{- include "paddle.roleValues" (dict "root" .root "role" .role "values" $values) }}
{{- $view := set (omit .root "Values" "Facts") "Values" $values }}
{{- include "training.facts" (dict "root" $view) }}
{{- $_ := set .root.Views .role $view }}
{{- end }}
{{- end }}

{{/*
Makes a copy of the values those of a role: for pservers the values under pservers replace those of the same name, and
trainers without paddle.useGpu have no accelerators. Prints nothing.
Arguments: root, role, values (the copy).
*/}}
{{- define "paddle.roleValues" -}}
{{- $v := .values }}
{{- $claims := ternary $v.paddle.pservers.claims $v.claims (eq .role "server") }}
{{- if $v.data.jobClaim.enabled }}
{{- $claims = prepend $claims (dict "claimName" (include "paddle.claim" .root) "mountPath" $v.data.jobPath) }}
{{- else }}
{{- $_ := set $v.pod "extraVolumes" (append $v.pod.extraVolumes (dict "name" "job" "emptyDir" dict)) }}
{{- $_ := set $v.pod "extraVolumeMounts" (append $v.pod.extraVolumeMounts (dict "name" "job" "mountPath" $v.data.jobPath)) }}
{{- end }}
{{- $_ := set $v "claims" $claims }}
{{- if eq .role "server" }}
{{- range $key := list "podLabels" "podAnnotations" }}{{ $_ := set $v $key (merge (dict) (index $v.paddle.pservers $key) (index $v $key)) }}{{ end }}
{{- /* Pservers read no data. */}}
{{- $_ := set $v.data.staging "claimName" "" }}
{{- $_ := set $v.data.verify "paths" list }}
{{- range $key := list "initContainers" "sidecars" "resourceClaims" }}{{ $_ := set $v.pod $key list }}{{ end }}
{{- $_ := set $v.pod "resourceClaimTemplates" dict }}
{{- range $key := list "resources" "nodeSelector" "tolerations" "affinity" }}{{ $_ := set $v $key (index $v.paddle.pservers $key) }}{{ end }}
{{- range $key := list "topologySpreadConstraints" "priorityClassName" }}{{ $_ := set $v.placement $key (index $v.paddle.pservers $key) }}{{ end }}
{{- else if not $v.paddle.useGpu }}
{{- $_ := set $v "accelerators" 0 }}
{{- end }}
{{- if and (ne .role "server") (include "paddle.isCollocated" .root) }}
{{- /* Trainers get what the pserver leaves of the node. */}}
{{- $requests := merge (dict) ($v.paddle.pservers.resources.requests | default dict) ($v.paddle.pservers.resources.limits | default dict) }}
{{- $cpu := $requests.cpu | default 0 | toString }}
{{- $cores := ternary (divf (trimSuffix "m" $cpu | float64) 1000) ($cpu | float64) (hasSuffix "m" $cpu) }}
{{- $_ := set $v.pod.reserve "cpu" (addf $v.pod.reserve.cpu $cores) }}
{{- $_ := set $v.pod.reserve "memoryMiB" (add (int64 $v.pod.reserve.memoryMiB) (include "common.MiB" (dict "quantity" ($requests.memory | default "0Mi")) | int64)) }}
{{- end }}
{{- end }}

{{- define "paddle.script" -}}
{{- include "training.script" (dict "root" . "check" (printf "files/%s.py" (ternary "check" "allreduce" (not (empty (include "paddle.hasServers" .)))))) }}
{{- end }}

{{/*
The variables that a role reads, as a list of EnvVar. None depends on the number of trainers, so that scaling changes no
pod: that number and the lists of hosts are in the settings, a ConfigMap that pods read while they run.
Arguments: root, role.
*/}}
{{- define "paddle.env" -}}
{{- $v := .root.Values }}
{{- $ports := add (int64 $v.paddle.pservers.portsNum) (int64 $v.paddle.pservers.portsNumForSparse) -}}
- name: POD_IP
  valueFrom:
    fieldRef: {fieldPath: status.podIP}
- name: BIREME_RUN_ID
  valueFrom:
    fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}
- name: PADDLE_TRAINER_ID
  valueFrom:
    fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
{{- /* A job of one worker less goes on where there are pservers. */}}
{{- $isCore := or (eq .role "server") (not (include "paddle.hasServers" .root)) }}
{{ include "training.webhook.env" (dict "root" .root "ends" (list 0 64 70 78) "starts" (ternary $v.recovery.backoffLimitPerIndex nil $isCore)) }}
{{- if include "paddle.hasServers" .root }}
- {name: TRAINING_ROLE, value: {{ ternary "PSERVER" "TRAINER" (eq .role "server") | quote }}}
- {name: PADDLE_TRAINING_ROLE, value: {{ ternary "PSERVER" "TRAINER" (eq .role "server") | quote }}}
- {name: BIREME_PADDLE_PSERVERS, value: {{ include "paddle.servers" .root | quote }}}
- {name: BIREME_SAVE_STEPS, value: "{{ int64 $v.recovery.saveEverySteps }}"}
{{- if eq $v.paddle.dispatch "dynamic" }}
{{ include "training.dispatcher.env" (dict "root" .root) }}
{{- end }}
{{- else }}
- {name: BIREME_PADDLE_PROCESSES, value: "{{ int64 .worker.processes }}"}
- {name: PADDLE_DISTRI_BACKEND, value: {{ ternary "nccl" "gloo" $v.paddle.useGpu | quote }}}
- {name: BIREME_HANG_SECONDS, value: "{{ int64 $v.recovery.hangSeconds }}"}
{{- end }}
{{ include "training.token.env" (dict "root" .root) }}
- {name: BIREME_MAX_RESTARTS, value: "{{ int64 $v.recovery.maxRestarts }}"}
- {name: BIREME_LOST_SECONDS, value: "{{ int64 $v.recovery.lostSeconds }}"}
- {name: PADDLE_PORT, value: "{{ int64 $v.paddle.pservers.port }}"}
- {name: BIREME_PADDLE_MODE, value: {{ $v.paddle.mode | quote }}}
- {name: BIREME_PADDLE_COORDINATOR, value: {{ include "paddle.coordinator" .root | quote }}}
- {name: BIREME_PADDLE_OUTPUT, value: {{ printf "%s/output" (include "paddle.folder" .root) | quote }}}
- {name: BIREME_PADDLE_SETTINGS, value: /bireme/settings}
{{- if $v.data.prep.enabled }}
- {name: BIREME_PADDLE_WAIT_FOR, value: {{ printf "%s/data/%s" (include "paddle.folder" .root) $v.data.prep.list | quote }}}
{{- end }}
- {name: BIREME_SCRIPT_RESTARTS, value: "{{ int64 $v.recovery.scriptRestarts }}"}
- {name: BIREME_WAIT_SECONDS, value: "{{ int64 $v.launch.waitSeconds }}"}
- {name: BIREME_GRACE_SECONDS, value: "{{ max 1 (sub (int64 $v.pod.terminationGracePeriodSeconds) 10) }}"}
{{- if ne .role "server" }}
{{- include "training.hardwareEnv" (dict "root" .root "worker" .worker) }}
{{- end }}
{{- /* The old variable names, for images that read them. */}}
- {name: JOB_NAME, value: {{ include "paddle.jobName" .root | quote }}}
- {name: JOB_PATH, value: {{ $v.data.jobPath | quote }}}
- {name: JOB_NAMESPACE, value: {{ .root.Release.Namespace | quote }}}
- {name: TRAINER_COUNT, value: "{{ int64 $v.paddle.trainerCount }}"}
- {name: CONF_PADDLE_NIC, value: {{ $v.paddle.nic | quote }}}
- {name: CONF_PADDLE_PORT, value: "{{ int64 $v.paddle.pservers.port }}"}
- {name: CONF_PADDLE_PORTS_NUM, value: "{{ int64 $v.paddle.pservers.portsNum }}"}
- {name: CONF_PADDLE_PORTS_NUM_SPARSE, value: "{{ int64 $v.paddle.pservers.portsNumForSparse }}"}
- {name: PADDLE_INIT_PORT, value: "{{ int64 $v.paddle.pservers.port }}"}
- {name: PADDLE_INIT_PORTS_NUM, value: "{{ int64 $v.paddle.pservers.portsNum }}"}
- {name: PADDLE_INIT_PORTS_NUM_FOR_SPARSE, value: "{{ int64 $v.paddle.pservers.portsNumForSparse }}"}
- {name: PADDLE_INIT_USE_GPU, value: {{ ternary "True" "False" $v.paddle.useGpu | quote }}}
- {name: PADDLE_INIT_TRAINER_COUNT, value: "{{ int64 $v.paddle.trainerCount }}"}
- name: PADDLE_INIT_TRAINER_ID
  valueFrom:
    fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
{{- end }}

{{/*
The variables of the `helm test`, as a list of EnvVar.
*/}}
{{- define "paddle.testEnv" -}}
- {name: BIREME_WAIT_SECONDS, value: "120"}
# A finished job has no pservers.
- {name: BIREME_DONE, value: {{ printf "%s/output/done" (include "paddle.folder" .) | quote }}}
{{- end }}

{{/*
The etcd in which the dispatcher keeps its state, as the JSON of training.etcdClient.
*/}}
{{- define "paddle.etcd" -}}
{{- $v := .Values.data.dispatcher.etcd }}
{{- include "training.etcdClient" (dict "root" . "endpoints" $v.endpoints "user" $v.existingSecret) }}
{{- end }}
