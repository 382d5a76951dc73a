{{/*
Everything of the Job's spec that Kubernetes will not change in place. job.yaml has the rest.
*/}}
{{- define "mpi-training.job" -}}
completionMode: Indexed
podFailurePolicy:
  rules:
    # A drain, a preemption or a lost node is not the worker's fault.
    - action: Ignore
      onPodConditions:
        - {type: DisruptionTarget, status: "True"}
    # The exit codes by which the entry point says that no restart can help (docs/mpi.md).
    - action: FailJob
      onExitCodes: {containerName: trainer, operator: In, values: [64, 78]}
successPolicy:
  rules:
    # Index 0 launches, and its program's end is the job's: the others only serve ssh.
    - succeededIndexes: "0"
template:
  {{- include "mpi-training.pod" (dict "root" . "role" "") | nindent 2 }}
{{- end }}

{{/*
Everything of the MPIJob's spec that the operator takes over only once. mpijob.yaml has the rest.
*/}}
{{- define "mpi-training.mpiJob" -}}
{{- $worker := include "common.worker" (dict "root" .) | fromJson -}}
mpiImplementation: {{ .Values.mpiImplementation }}
slotsPerWorker: {{ int64 $worker.processes }}
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
    # The operator does not make a worker anew that has failed.
    restartPolicy: OnFailure
    template:
      {{- include "mpi-training.pod" (dict "root" . "role" "worker") | nindent 6 }}
{{- end }}

{{/*
What must not change while the job runs, as JSON {part: content}. A run has as many workers as it started with.
*/}}
{{- define "mpi-training.immutableParts" -}}
{{- $parts := dict "workers" (int64 .Values.workers) }}
{{- if include "mpi-training.isMpiJob" . }}
{{- $spec := include "mpi-training.mpiJob" . | fromYaml }}
{{- $_ := set $parts "launcher" $spec.mpiReplicaSpecs.Launcher }}
{{- $job := merge (omit $spec "mpiReplicaSpecs") (dict "template" $spec.mpiReplicaSpecs.Worker.template) }}
{{- toJson (merge $parts (include "common.immutable.jobParts" (dict "spec" $job) | fromJson)) }}
{{- else }}
{{- toJson (merge $parts (include "common.immutable.jobParts" (dict "spec" (include "mpi-training.job" . | fromYaml)) | fromJson)) }}
{{- end }}
{{- end }}

{{/*
A sentence when an MPIJob of this release could still train: two runs never write one checkpoint.
Arguments: root, name (of this run's MPIJob).
*/}}
{{- define "mpi-training.otherMpiRun" -}}
{{- $root := required "mpi-training.otherMpiRun needs root" .root }}
{{- $name := required "mpi-training.otherMpiRun needs name" .name }}
{{- if $root.Capabilities.APIVersions.Has "kubeflow.org/v2beta1/MPIJob" }}
{{- range (lookup "kubeflow.org/v2beta1" "MPIJob" $root.Release.Namespace "").items }}
{{- $labels := .metadata.labels | default dict }}
{{- $mine := and (eq (get $labels "app.kubernetes.io/instance") $root.Release.Name) (eq (get $labels "app.kubernetes.io/name") $root.Chart.Name) }}
{{- $active := 0 }}
{{- range $role, $status := dig "status" "replicaStatuses" dict . }}{{ $active = add $active (dig "active" 0 $status | int64) }}{{ end }}
{{- $ended := dig "spec" "runPolicy" "suspend" false . }}
{{- range dig "status" "conditions" list . }}
{{- if and (has .type (list "Succeeded" "Failed")) (eq .status "True") }}{{ $ended = true }}{{ end }}
{{- end }}
{{- if and $mine (ne .metadata.name $name) (not (and $ended (eq (int64 $active) 0))) }}
{{- printf "run %s is not stopped, and two runs must not write one checkpoint: stop it with helm upgrade --reuse-values --set suspend=true (its pods get the grace period to save), wait until they are gone, then upgrade to the new run; bireme install --replace does all of it\n" .metadata.name }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
