{{/*
What the templates know, worked out once and kept in the root as Facts: volume (fsx.volume) and parameters
(fsx.parameters). Prints nothing.
*/}}
{{- define "fsx.facts" -}}
{{- if not (hasKey . "Facts") }}
{{- $volume := include "fsx.volume" . | fromJson }}
{{- $parameters := include "fsx.parameters" . | fromJson }}
{{- $_ := set . "Facts" (dict "volume" $volume "parameters" $parameters) }}
{{- end }}
{{- end }}

{{/*
The volume as JSON: size, accessMode, keep, storageClassName, and for a static volume volumeName and source.
*/}}
{{- define "fsx.volume" -}}
{{- $v := .Values }}
{{- $given := ternary $v.persistentVolume.name $v.storageClass.name (eq $v.provisioning "static") }}
{{- $own := include "common.volumeName" (dict "root" . "claim" $v.claimName "name" $given) }}
{{- $volume := pick $v "size" "accessMode" "keep" }}
{{- if eq $v.provisioning "static" }}
{{- $attributes := dict "dnsname" $v.static.dnsName "mountname" $v.static.mountName }}
{{- $source := dict "csi" (dict "driver" "fsx.csi.aws.com" "volumeHandle" $v.static.fileSystemId "volumeAttributes" $attributes) }}
{{- $volume = merge $volume (dict "storageClassName" "" "volumeName" $own "source" $source) }}
{{- else }}
{{- $volume = merge $volume (dict "storageClassName" $own) }}
{{- end }}
{{- toJson $volume }}
{{- end }}

{{/*
The parameters from which the driver creates a file system, as JSON {parameter: text} without empty ones
(docs/options.md of kubernetes-sigs/aws-fsx-csi-driver).
*/}}
{{- define "fsx.parameters" -}}
{{- $d := .Values.dynamic }}
{{- $persistent := ne $d.deploymentType "SCRATCH_2" }}
{{- $parameters := dict "subnetId" $d.subnetId "securityGroupIds" (join "," $d.securityGroupIds) "storageType" "SSD"
    "deploymentType" $d.deploymentType "fileSystemTypeVersion" $d.fileSystemTypeVersion
    "dataCompressionType" $d.dataCompressionType "s3ImportPath" $d.s3ImportPath "s3ExportPath" $d.s3ExportPath
    "kmsKeyId" $d.kmsKeyId "metadataConfigurationMode" $d.metadata.mode
    "weeklyMaintenanceStartTime" $d.weeklyMaintenanceStartTime
    "dailyAutomaticBackupStartTime" $d.dailyAutomaticBackupStartTime }}
{{- if $d.copyTagsToBackups }}{{ $_ := set $parameters "copyTagsToBackups" "true" }}{{ end }}
{{- if and $d.s3ImportPath (ne $d.autoImportPolicy "NONE") }}{{ $_ := set $parameters "autoImportPolicy" $d.autoImportPolicy }}{{ end }}
{{- if $d.efaEnabled }}{{ $_ := set $parameters "efaEnabled" "true" }}{{ end }}
{{- if $persistent }}
{{- $_ := set $parameters "automaticBackupRetentionDays" (int64 $d.automaticBackupRetentionDays | toString) }}
{{- $_ := set $parameters "perUnitStorageThroughput" (int64 $d.perUnitStorageThroughput | toString) }}
{{- end }}
{{- if $d.metadata.iops }}{{ $_ := set $parameters "metadataIops" (int64 $d.metadata.iops | toString) }}{{ end }}
{{- $tags := list }}
{{- range $key, $value := $d.extraTags }}{{ $tags = append $tags (printf "%s=%s" $key $value) }}{{ end }}
{{- $_ := set $parameters "extraTags" (join "," $tags) }}
{{- range keys $parameters }}{{ if not (get $parameters .) }}{{ $_ := unset $parameters . }}{{ end }}{{ end }}
{{- toJson $parameters }}
{{- end }}

{{/*
The digests of the immutable parts. The size of a dynamic claim is not one of them, because the driver can
grow a file system.
*/}}
{{- define "fsx.immutable" -}}
{{- $v := .Values }}
{{- $parts := dict "provisioning" $v.provisioning "accessMode" $v.accessMode }}
{{- if eq .Values.provisioning "static" }}
{{- $parts = merge $parts (dict "static" .Values.static "size" .Values.size "zone" .Values.zone) }}
{{- else }}
{{- include "fsx.facts" . }}
{{- $parts = merge $parts (dict "dynamic" .Facts.parameters) (pick .Values.dynamic "reclaimPolicy" "volumeBindingMode") }}
{{- end }}
{{- with $v.persistentVolume.name | default $v.storageClass.name }}{{ $_ := set $parts "name" . }}{{ end }}
{{- include "common.immutable.digests" (dict "parts" $parts) }}
{{- end }}

{{/*
The step in GiB by which a file system of this deployment type grows above its first 1200 (aws fsx create-file-system).
With EFA the step is also the smallest size (docs.aws.amazon.com/fsx/latest/LustreGuide/efa-file-systems.html).
*/}}
{{- define "fsx.stepGiB" -}}
{{- if .Values.dynamic.efaEnabled }}{{ div 4800000 (.Values.dynamic.perUnitStorageThroughput | default 1000 | int64) }}
{{- else }}2400
{{- end }}
{{- end }}
