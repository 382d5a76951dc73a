{{/*
Staging: before a worker trains, an init container copies a folder of a claim into an emptyDir. The emptyDir is on the
node's NVMe if the kubelet keeps its files there. The init container runs the code of charts/dataset, which compares the
copy with its MANIFEST.jsonl, if it has one. All of these templates take root (values data, claims, image, launch) and
print nothing while data.staging.claimName is empty.
*/}}

{{/*
The name of the volume with the data.
*/}}
{{- define "training.staging.source" -}}
{{- $root := required "training.staging.source needs root" .root }}
{{- include "training.claimVolume" (dict "root" $root "claimName" $root.Values.data.staging.claimName) | default "staging-source" }}
{{- end }}

{{- define "training.staging.container" -}}
{{- $root := required "training.staging.container needs root" .root }}
{{- $v := $root.Values }}
{{- if $v.data.staging.claimName -}}
{{- $settings := dict "target" "/staging/data" "sources" (list (dict "url" "file:///source")) }}
{{- $source := dict "name" (include "training.staging.source" .) "mountPath" "/source" "readOnly" true }}
{{- with $v.data.staging.subPath }}{{ $_ := set $source "subPath" . }}{{ end }}
{{- include "training.datasetContainer" (dict "root" $root "name" "staging" "arguments" (list "copy")
    "env" (list (dict "name" "PYTHONUNBUFFERED" "value" "1") (dict "name" "BIREME_DATASET" "value" (toJson $settings)))
    "mounts" (list $source (dict "name" "staging" "mountPath" "/staging") | toYaml)) }}
{{- end }}
{{- end }}

{{/*
The rules of a podFailurePolicy for the containers that stage and verify datasets, if there are any.
Arguments: root.
*/}}
{{- define "training.datasetFailures" -}}
{{- $v := (required "training.datasetFailures needs root" .root).Values }}
{{- range $name, $isThere := dict "staging" $v.data.staging.claimName "verify" $v.data.verify.paths }}
{{- if $isThere }}
- action: FailJob
  onExitCodes: {containerName: {{ $name | quote }}, operator: In, values: [64, 77, 78]}
{{- end }}
{{- end }}
{{- end }}

{{- define "training.staging.mount" -}}
{{- $staging := (required "training.staging.mount needs root" .root).Values.data.staging }}
{{- if $staging.claimName -}}
- {name: staging, mountPath: {{ $staging.mountPath | quote }}, subPath: data, readOnly: true}
{{- end }}
{{- end }}

{{- define "training.staging.volumes" -}}
{{- $staging := (required "training.staging.volumes needs root" .root).Values.data.staging }}
{{- if $staging.claimName -}}
- name: staging
  emptyDir: {sizeLimit: {{ $staging.size | quote }}}
{{- if eq (include "training.staging.source" .) "staging-source" }}
- name: staging-source
  persistentVolumeClaim: {claimName: {{ $staging.claimName | quote }}, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{/*
The copy fits the worker's share of the NVMe less 15%, because kubelets evict pods when less than that is free
(kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction, imagefs.available).
Arguments: root, worker (see training.facts).
*/}}
{{- define "training.rules.staging" -}}
{{- $v := (required "training.rules.staging needs root" .root).Values }}
{{- $worker := required "training.rules.staging needs worker" .worker }}
{{- include "training.facts" (dict "root" .root) }}
{{- $nvmeGB := .root.Facts.instance.nvmeGB | default 0 | int64 }}
{{- $roomGi := divf (mulf $nvmeGB 1000000000 0.85 $worker.share) 1073741824 | floor | int64 }}
{{- $sizeMiB := include "common.MiB" (dict "quantity" ($v.data.staging.size | default "0Mi")) | int64 }}
{{- if not $v.data.staging.claimName }}
{{- if $v.data.staging.size }}
data.staging.size: without data.staging.claimName nothing is staged; set the claim that has the data, or leave size out
{{- end }}
{{- else if not $worker.type }}
data.staging.claimName: without an instance type the NVMe of the nodes is unknown; choose one with -f values/instances/TYPE.yaml
{{- else if not $nvmeGB }}
data.staging.claimName: {{ $worker.type }} has no NVMe of its own; choose a type with instance.nvmeGB, or mount the claim with claims
{{- else if not $v.data.staging.size }}
data.staging.size: set the size of the data, e.g. 200Gi; each worker has {{ $roomGi }}Gi of NVMe
{{- else if gt $sizeMiB (mul $roomGi 1024) }}
data.staging.size: {{ $v.data.staging.size }} is more than the {{ $roomGi }}Gi of NVMe that a worker on {{ $worker.type }} has; lower it, or mount the claim with claims
{{- end }}
{{- end }}
