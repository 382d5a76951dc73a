{{- define "NAME.script" -}}
{{- include "common.script" (dict "root" . "check" "files/check.py") }}
{{- end }}

{{/*
The variables that the framework reads, as a list of EnvVar.
Arguments: root.
*/}}
{{- define "NAME.env" -}}
{{- $root := .root -}}
- name: RANK
  valueFrom:
    fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
- {name: WORLD_SIZE, value: "{{ int64 $root.Values.workers }}"}
- {name: MASTER_ADDR, value: "{{ include "common.jobName" (dict "root" $root) }}-0.{{ include "common.fullname" (dict "root" $root) }}"}
- {name: MASTER_PORT, value: "29500"}
- {name: BIREME_WAIT_SECONDS, value: "{{ int64 $root.Values.waitSeconds }}"}
{{- end }}

{{/*
The template of a pod: {metadata, spec}.
*/}}
{{- define "NAME.pod" -}}
{{- $worker := include "common.worker" (dict "root" .) | fromJson }}
{{- $script := include "NAME.script" . }}
{{- $container := include "common.trainingContainer" (dict "root" . "name" "trainer" "script" $script "shm" $worker.shm
    "command" (.Values.command | default (list .Values.python))
    "arguments" (include "common.scriptArguments" (dict "root" . "script" $script) | fromJsonArray)
    "fixed" (include "NAME.env" (dict "root" .) | fromYamlArray)
    "derived" (include "common.trainingEnv" (dict "root" . "worker" $worker) | fromJson)
    "resources" (include "common.workerResources" (dict "root" . "worker" $worker))) }}
{{- include "common.trainingPod" (dict "root" . "component" "worker" "runtime" "worker" "script" $script "shm" $worker.shm
    "containers" $container
    "placement" (include "common.workerPlacement" (dict "root" . "worker" $worker))
    "subdomain" (include "common.fullname" (dict "root" .))) }}
{{- end }}
