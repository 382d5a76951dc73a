{{/*
"true" when each pod has starts of its own: workers of an elastic job come and go, and a launcher that tells how the run
ends has to know its last start. Kubernetes tells a pod only of its own starts.
*/}}
{{- define "mpi-training.countsEachPod" -}}
{{- if or .Values.elastic.maxWorkers (include "training.webhook" (dict "root" .)) }}true{{ end }}
{{- end }}

{{/*
The fields of the Job's spec that do not change in place. job.yaml has the others.
*/}}
{{- define "mpi-training.jobSpec" -}}
{{- include "common.once" (dict "root" . "template" "mpi-training.jobSpec.text" "arguments" .) }}
{{- end }}
{{- define "mpi-training.jobSpec.text" -}}
{{- include "training.facts" (dict "root" .) -}}
completionMode: Indexed
{{- if include "mpi-training.countsEachPod" . }}
backoffLimitPerIndex: {{ int64 .Values.recovery.backoffLimit }}
maxFailedIndexes: 0
{{- end }}
podFailurePolicy:
  {{- include "training.podFailurePolicy" (dict "root" . "worker" .Facts.worker "containers" (list "trainer") "codes" (list 64 78)) | nindent 2 }}
successPolicy:
  rules:
    # Index 0 runs mpirun, and the job ends with it. The others only serve ssh.
    - succeededIndexes: "0"
template:
  {{- include "mpi-training.pod" (dict "root" . "role" "") | nindent 2 }}
{{- end }}

{{/*
The fields of the MPIJob's spec that the operator reads only when it starts pods. mpijob.yaml has the others.
*/}}
{{- define "mpi-training.mpiJobSpec" -}}
{{- include "common.once" (dict "root" . "template" "mpi-training.mpiJobSpec.text" "arguments" .) }}
{{- end }}
{{- define "mpi-training.mpiJobSpec.text" -}}
{{- include "training.facts" (dict "root" .) -}}
mpiImplementation: {{ .Values.mpi.implementation | quote }}
slotsPerWorker: {{ int64 .Facts.worker.processes }}
sshAuthMountPath: /bireme/ssh
launcherCreationPolicy: WaitForWorkersReady
mpiReplicaSpecs:
  Launcher:
    replicas: 1
    restartPolicy: Never
    template:
      {{- include "mpi-training.pod" (dict "root" . "role" "launcher") | nindent 6 }}
  Worker:
    replicas: {{ int64 .Values.workers }}
    # The operator does not replace a worker that has failed.
    restartPolicy: OnFailure
    template:
      {{- include "mpi-training.pod" (dict "root" . "role" "worker") | nindent 6 }}
{{- end }}

{{/*
Keeps these fields in the root as Facts.spec, with the pod of the workers as the template, and an MPIJob's launcher as
Facts.launcher, for templates that read some of them. Prints nothing.
*/}}
{{- define "mpi-training.spec" -}}
{{- include "training.facts" (dict "root" .) }}
{{- if hasKey .Facts "spec" }}
{{- else if include "mpi-training.isMpiJob" . }}
{{- $mpiJob := include "mpi-training.mpiJobSpec" . | fromYaml }}
{{- $_ := set .Facts "launcher" $mpiJob.mpiReplicaSpecs.Launcher }}
{{- $_ := set .Facts "spec" (set (omit $mpiJob "mpiReplicaSpecs") "template" $mpiJob.mpiReplicaSpecs.Worker.template) }}
{{- else }}
{{- $_ := set .Facts "spec" (include "mpi-training.jobSpec" . | fromYaml) }}
{{- end }}
{{- end }}

{{/*
The digests of what must not change while the job runs. The number of workers is one of these parts, unless the job is
elastic.
*/}}
{{- define "mpi-training.immutable" -}}
{{- include "common.once" (dict "root" . "template" "mpi-training.immutable.text" "arguments" .) }}
{{- end }}
{{- define "mpi-training.immutable.text" -}}
{{- include "mpi-training.spec" . }}
{{- $further := pick .Facts "launcher" }}
{{- if not .Values.elastic.maxWorkers }}{{ $_ := set $further "workers" (int64 .Values.workers) }}{{ end }}
{{- include "common.immutable.job" (dict "spec" .Facts.spec "further" $further) }}
{{- end }}

{{/*
The same as training.immutable.otherRun, but for MPIJobs.
Arguments: root, name (of this run's MPIJob).
*/}}
{{- define "mpi-training.otherMpiRun" -}}
{{- $root := required "mpi-training.otherMpiRun needs root" .root }}
{{- $name := required "mpi-training.otherMpiRun needs name" .name }}
{{- if $root.Capabilities.APIVersions.Has "kubeflow.org/v2beta1/MPIJob" }}
{{- range (lookup "kubeflow.org/v2beta1" "MPIJob" $root.Release.Namespace "").items }}
{{- include "training.immutable.otherJob" (dict "root" $root "job" . "names" (list $name) "isStopped" (include "mpi-training.isStopped" (dict "job" .))) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
"true" for a live MPIJob that is finished or suspended and has no pod left.
Arguments: job.
*/}}
{{- define "mpi-training.isStopped" -}}
{{- $job := required "mpi-training.isStopped needs job" .job }}
{{- $pods := 0 }}
{{- range $role, $status := dig "status" "replicaStatuses" dict $job }}{{ $pods = add $pods (dig "active" 0 $status | int64) }}{{ end }}
{{- $ended := dig "spec" "runPolicy" "suspend" false $job }}
{{- range dig "status" "conditions" list $job }}
{{- if and (has .type (list "Succeeded" "Failed")) (eq .status "True") }}{{ $ended = true }}{{ end }}
{{- end }}
{{- if and $ended (eq (int64 $pods) 0) }}true{{ end }}
{{- end }}
