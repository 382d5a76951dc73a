{{/*
The pods of a training job. A chart defines its own part in CHART.pod (_pod.tpl).
*/}}

{{/*
The template of a pod: {metadata, spec}. Its init containers verify and stage datasets, if the values ask for it.
Arguments: root (with the values of this pod), component (for its labels), runtime (component of its runtime), containers
(YAML), worker (see training.facts, if the first container has its devices), initContainers (YAML, optional),
placement (YAML), shm (size of /dev/shm, empty for none), script (source, empty for none), volumes (YAML, optional), subdomain (the Service of an Indexed Job's pods; empty for pods of an operator),
group (optional: see training.queue.group).
*/}}
{{- define "training.pod" -}}
{{- $root := required "training.pod needs root" .root }}
{{- $v := $root.Values }}
{{- $first := compact (list (include "training.devices.container" .)
    (include "training.git.container" (dict "root" $root))
    (.initContainers | default "")
    (include "training.ownContainers" (dict "root" $root "containers" $v.pod.initContainers "fields" dict))
    (include "training.verify.container" (dict "root" $root))
    (include "training.staging.container" (dict "root" $root))
    (include "training.ownContainers" (dict "root" $root "containers" $v.pod.sidecars "fields" (dict "restartPolicy" "Always")))) -}}
{{- $labels := dict }}
{{- $annotations := dict }}
{{- with include "training.git.source" (dict "root" $root) }}{{ $_ := set $annotations "bireme/source" . }}{{ end }}
{{- include "training.placement.annotations" (dict "root" $root "annotations" $annotations) }}
{{- include "training.queue.group" (dict "root" $root "count" .group "labels" $labels "annotations" $annotations) }}
metadata:
  {{- include "common.podMetadata" (dict "root" $root "component" .component "labels" $labels "annotations" $annotations) | nindent 2 }}
spec:
  {{- with .subdomain }}
  restartPolicy: Never
  subdomain: {{ . | quote }}
  {{- end }}
  terminationGracePeriodSeconds: {{ int64 $v.pod.terminationGracePeriodSeconds }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  serviceAccountName: {{ include "common.serviceAccountName" (dict "root" $root) | quote }}
  {{- include "common.imagePullSecrets" (dict "root" $root) | nindent 2 }}
  securityContext:
    {{- toYaml $v.podSecurityContext | nindent 4 }}
  {{- .placement | nindent 2 }}
  {{- range $key := list "hostNetwork" "hostIPC" "hostPID" }}
  {{- if index $v.pod $key }}
  {{ $key }}: true
  {{- end }}
  {{- end }}
  {{- with $v.pod.dnsPolicy | default (ternary "ClusterFirstWithHostNet" "" $v.pod.hostNetwork) }}
  dnsPolicy: {{ . | quote }}
  {{- end }}
  {{- range $key := list "dnsConfig" "hostAliases" }}
  {{- with index $v.pod $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- include "training.resourceClaims" (dict "root" $root) | nindent 2 }}
  {{- with $first }}
  initContainers:
    {{- join "\n" . | nindent 4 }}
  {{- end }}
  containers:
    {{- required "training.pod needs containers" .containers | nindent 4 }}
  volumes:
    {{- with .shm }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ . | quote }}}
    {{- end }}
    {{- if include "training.hasRuntime" (dict "root" $root) }}
    {{- include "runtime.volume" (dict "root" $root "component" .runtime) | nindent 4 }}
    {{- end }}
    {{- include "training.datasetVolume" (dict "root" $root) | nindent 4 }}
    {{- .volumes | nindent 4 }}
    {{- include "training.scriptVolume" . | nindent 4 }}
    {{- include "training.webhook.volume" (dict "root" $root) | nindent 4 }}
    {{- include "training.claimVolumes" (dict "root" $root) | nindent 4 }}
    {{- include "training.staging.volumes" (dict "root" $root) | nindent 4 }}
    {{- with $v.pod.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/*
Containers of the values. Image and security context are those of the job where they name none.
Arguments: root (values image, securityContext), containers (list), fields (dict: fields that all of them get).
*/}}
{{- define "training.ownContainers" -}}
{{- $root := required "training.ownContainers needs root" .root }}
{{- $v := $root.Values }}
{{- $containers := list }}
{{- range .containers }}
{{- $usual := dict "image" (include "common.image" (dict "root" $root "image" $v.image)) "imagePullPolicy" $v.image.pullPolicy
    "securityContext" (deepCopy $v.securityContext) }}
{{- $containers = append $containers (mergeOverwrite $usual (deepCopy .) $.fields) }}
{{- end }}
{{- with $containers }}{{ toYaml . }}{{ end }}
{{- end }}

{{/*
The words of a command, in YAML. The setup of the values runs first, in one shell with it: in bash where the image has it,
for which such lines are mostly written. Kubernetes takes $$ for a $, and would replace $(NAME).
Arguments: root (values launch), command (list).
*/}}
{{- define "training.command" -}}
{{- $command := required "training.command needs command" .command }}
{{- with (required "training.command needs root" .root).Values.launch.setup }}
{{- $lines := list "trap 'exit 143' TERM" (trim .) "trap - TERM" "exec \"$@\"" | join "\n" }}
{{- $shell := `script=$1; shift; exec "$(command -v bash || command -v sh)" -ec "$script" setup "$@"` }}
{{- $command = concat (list "sh" "-c" ($shell | replace "$" "$$") "setup" ($lines | replace "$" "$$")) $command }}
{{- end }}
{{- include "training.words" (dict "words" $command) }}
{{- end }}

{{/*
A container that trains. It has the script, the runtime and the claims.
Arguments: root (values image, launch, env, pod, claims, data, securityContext), name,
command and arguments (lists), fixed and derived (see training.env), envFrom (a list of the chart's own, optional), ports (the chart's own in YAML, optional), resources (YAML), shm (size of
/dev/shm, empty for none), script (source, empty for none), mounts (YAML, optional), fields (YAML, optional: further fields of the container).
*/}}
{{- define "training.container" -}}
{{- $root := required "training.container needs root" .root }}
{{- $v := $root.Values -}}
- name: {{ required "training.container needs name" .name | quote }}
  image: {{ include "common.image" (dict "root" $root "image" $v.image) | quote }}
  imagePullPolicy: {{ $v.image.pullPolicy | quote }}
  command:
    {{- include "training.command" (dict "root" $root "command" .command) | nindent 4 }}
  {{- with $v.launch.workingDir | default (or $v.launch.files $v.launch.git.url | empty | ternary "" "/bireme/script") }}
  workingDir: {{ . | quote }}
  {{- end }}
  {{- with .arguments }}
  args:
    {{- include "training.words" (dict "words" .) | nindent 4 }}
  {{- end }}
  {{- include "training.env" (dict "root" $root "fixed" .fixed "derived" .derived) | nindent 2 }}
  {{- /* Of two sources with one variable the last wins. */}}
  {{- with concat $v.pod.envFrom (.envFrom | default list) }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if or .ports $v.pod.ports }}
  ports:
    {{- with .ports }}{{ trim . | nindent 4 }}{{ end }}
    {{- with $v.pod.ports }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- end }}
  {{- .resources | nindent 2 }}
  {{- .fields | default "" | nindent 2 }}
  {{- with $v.pod.lifecycle }}
  lifecycle:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $v.securityContext | nindent 4 }}
  volumeMounts:
    {{- if .shm }}
    - {name: shm, mountPath: /dev/shm}
    {{- end }}
    {{- if include "training.hasRuntime" (dict "root" $root) }}
    - {name: runtime, mountPath: /bireme/runtime, readOnly: true}
    {{- end }}
    {{- .mounts | nindent 4 }}
    {{- if include "training.hasFolder" (dict "root" $root "script" .script) }}
    - {name: script, mountPath: /bireme/script, readOnly: true}
    {{- end }}
    {{- include "training.webhook.mount" (dict "root" $root) | nindent 4 }}
    {{- include "training.claimMounts" (dict "root" $root "readOnly" false) | nindent 4 }}
    {{- include "training.staging.mount" (dict "root" $root) | nindent 4 }}
    {{- with $v.pod.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/*
Adds to an environment {name: value} the variables of the instance family, and a home for a user whom the image does not
know. Root and the user that the image names have theirs. Prints nothing.
Arguments: root (values podSecurityContext, securityContext), worker (see training.facts), env (the dict to fill).
*/}}
{{- define "training.podEnv" -}}
{{- $v := (required "training.podEnv needs root" .root).Values }}
{{- $user := dig "runAsUser" (dig "runAsUser" 0 $v.podSecurityContext) $v.securityContext | int64 }}
{{- include "training.networkEnv" . }}
{{- if gt $user 0 }}
{{- $_ := set .env "HOME" "/tmp" }}
{{- $_ := set .env "USER" "trainer" }}
{{- end }}
{{- $_ := set .env "PYTHONPATH" "/bireme/runtime" }}
{{- $_ := set .env "PYTHONUNBUFFERED" "1" }}
{{- end }}

{{/*
The scheduling fields of a worker.
Arguments: root, worker (see training.facts), components (list: those whose pods stay together; optional).
*/}}
{{- define "training.workerPlacement" -}}
{{- $together := merge (dict "components" (.components | default (list "worker"))) . }}
{{- $p := .root.Values.placement }}
{{- $gang := $p.gang | default "" }}
{{- include "training.workerNodeSelector" . }}
{{ include "training.workerTolerations" . }}
{{- include "training.placement.affinity" $together }}
{{- include "training.placement.spread" $together }}
{{- with $p.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $p.schedulerName | default (ternary $gang "" (eq $gang "volcano")) }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with .root.Values.pod.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- if eq $gang "kubernetes" }}
schedulingGroup: {podGroupName: {{ include "common.jobName" (dict "root" .root) | quote }}}
{{- end }}
{{- end }}
