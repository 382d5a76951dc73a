{{- define "mpi-training.isMpiJob" -}}
{{- if eq .Values.mpi.orchestrator "MPIJob" }}true{{ end }}
{{- end }}

{{- define "mpi-training.script" -}}
{{- include "training.script" (dict "root" . "check" "files/allreduce.py") }}
{{- end }}

{{/*
The program of the ranks and its arguments, as a JSON list.
*/}}
{{- define "mpi-training.program" -}}
{{- $program := include "training.program" (dict "root" . "script" (include "mpi-training.script" .)) }}
{{- $script := ternary (list .Values.launch.python $program) list (not (empty $program)) }}
{{- $words := list }}
{{- include "training.facts" (dict "root" .) }}
{{- range concat .Values.launch.command $script .Facts.arguments .Values.launch.extraArgs }}{{ $words = append $words (include "training.text" (dict "value" .)) }}{{ end }}
{{- toJson $words }}
{{- end }}

{{/*
The command that serves ssh, or waits for the workers and runs mpirun, as a JSON list. Kubernetes takes $$ for a $.
*/}}
{{- define "mpi-training.entryPoint" -}}
{{- if include "training.hasRuntime" (dict "root" .) }}
{{- toJson (concat (list .Values.launch.python "-m" "bireme_runtime.mpi.supervisor") (ternary (list "--as-is") list (not (empty .Values.launch.command))) (list "--")) }}
{{- else }}
{{- toJson (list "sh" "-ec" (.Files.Get "files/mpirun.sh" | replace "$" "$$") "mpirun.sh") }}
{{- end }}
{{- end }}

{{/*
Its arguments as a JSON list: the program, which the runtime runs with mpirun; without the runtime also mpirun.
Arguments: root, worker (see training.facts).
*/}}
{{- define "mpi-training.arguments" -}}
{{- $v := .root.Values }}
{{- $program := include "mpi-training.program" .root | fromJsonArray }}
{{- if or $v.launch.command (include "training.hasRuntime" (dict "root" .root)) }}
{{- toJson $program }}
{{- else }}
{{- $size := mul (int64 $v.workers) (int64 .worker.processes) | toString }}
{{- $hosts := ternary "-f" "--hostfile" (has $v.mpi.implementation (list "Intel" "MPICH")) }}
{{- $own := list }}
{{- range $v.mpi.mpirunArgs }}{{ $own = append $own (include "training.text" (dict "value" .)) }}{{ end }}
{{- toJson (concat (list "mpirun" "-np" $size $hosts "/bireme/mpi/hostfile") $own $program) }}
{{- end }}
{{- end }}

{{/*
The host name of a worker, with {} in place of its index.
*/}}
{{- define "mpi-training.hosts" -}}
{{- $job := include "common.jobName" (dict "root" .) }}
{{- if include "mpi-training.isMpiJob" . }}
{{- printf "%s-worker-{}.%s" $job $job }}
{{- else }}
{{- printf "%s-{}.%s" $job (include "common.fullname" (dict "root" .)) }}
{{- end }}
{{- end }}

{{/*
The Secret with the ssh key: that of the operator, of the values, or of the chart.
*/}}
{{- define "mpi-training.sshSecret" -}}
{{- if include "mpi-training.isMpiJob" . }}
{{- printf "%s-ssh" (include "common.jobName" (dict "root" .)) }}
{{- else }}
{{- .Values.mpi.ssh.existingSecret | default (printf "%s-ssh" (include "common.fullname" (dict "root" .))) }}
{{- end }}
{{- end }}

{{/*
The variables that the entry point reads (docs/mpi.md), as a list of EnvVar.
Arguments: root, worker (see training.facts), role ("" in an Indexed Job, whose index 0 is the launcher).
*/}}
{{- define "mpi-training.env" -}}
{{- $v := .root.Values -}}
{{- with .role }}
- {name: BIREME_MPI_ROLE, value: {{ . | quote }}}
{{- end }}
- {name: BIREME_NAME, value: {{ include "common.fullname" (dict "root" .root) | quote }}}
- {name: BIREME_MPI_HOSTS, value: {{ include "mpi-training.hosts" .root | quote }}}
- {name: BIREME_MPI_WORKERS, value: "{{ $v.elastic.maxWorkers | default $v.workers | int64 }}"}
{{ include "training.webhook.env" (dict "root" .root "ends" (list 0 64 78) "starts" $v.recovery.backoffLimit) }}
{{- if $v.elastic.maxWorkers }}
- {name: BIREME_MPI_LEAST, value: "{{ int64 $v.elastic.minWorkers }}"}
{{- end }}
- {name: BIREME_MPI_SLOTS, value: "{{ int64 .worker.processes }}"}
- {name: BIREME_MPI_IMPLEMENTATION, value: {{ $v.mpi.implementation | quote }}}
- {name: BIREME_MPI_PORT, value: "{{ int64 $v.mpi.ssh.port }}"}
- {name: BIREME_SSHD_LOG, value: {{ $v.mpi.ssh.logLevel | quote }}}
- {name: BIREME_WAIT_SECONDS, value: "{{ int64 $v.launch.waitSeconds }}"}
- {name: BIREME_PROBE_SECONDS, value: "{{ int64 $v.mpi.probeSeconds }}"}
- {name: BIREME_GRACE_SECONDS, value: "{{ max 1 (sub (int64 $v.pod.terminationGracePeriodSeconds) 15) }}"}
{{- with $v.mpi.mpirunArgs }}
{{- $words := list }}
{{- range . }}{{ $words = append $words (include "training.text" (dict "value" .)) }}{{ end }}
- {name: BIREME_MPI_ARGUMENTS, value: {{ toJson $words | quote }}}
{{- end }}
{{- if $v.data.dispatcher.enabled }}
{{ include "training.dispatcher.env" (dict "root" .root "dataset" (ternary (include "common.jobName" (dict "root" .root)) "" (not (empty .role)))) }}
{{ include "training.token.env" (dict "root" .root) }}
{{- end }}
{{- if ne .role "launcher" }}
{{- include "training.hardwareEnv" (dict "root" .root "worker" .worker) }}
{{- end }}
{{- end }}

{{/*
The etcd in which the dispatcher keeps its state, as the JSON of training.etcdClient.
*/}}
{{- define "mpi-training.etcd" -}}
{{- $v := .Values.data.dispatcher.etcd }}
{{- include "training.etcdClient" (dict "root" . "endpoints" $v.endpoints "user" $v.existingSecret) }}
{{- end }}

{{/*
The variables of the `helm test`, as a list of EnvVar.
*/}}
{{- define "mpi-training.testEnv" -}}
- {name: BIREME_MPI_ROLE, value: check}
{{- if .Values.elastic.maxWorkers }}
- {name: BIREME_MPI_LEAST, value: "{{ int64 .Values.elastic.minWorkers }}"}
{{- end }}
- {name: BIREME_MPI_IMPLEMENTATION, value: {{ .Values.mpi.implementation | quote }}}
- {name: BIREME_MPI_PORT, value: "{{ int64 .Values.mpi.ssh.port }}"}
{{- end }}
