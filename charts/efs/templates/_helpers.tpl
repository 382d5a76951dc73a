{{/*
The volumes of the values by the names of their claims, worked out once and kept in the root as Facts.volumes (efs.volume).
Prints nothing.
*/}}
{{- define "efs.facts" -}}
{{- if not (hasKey . "Facts") }}
{{- $volumes := dict }}
{{- range $claim, $given := .Values.volumes }}
{{- $_ := set $volumes $claim (include "efs.volume" (dict "root" $ "claim" $claim "volume" $given) | fromJson) }}
{{- end }}
{{- $_ := set . "Facts" (dict "volumes" $volumes) }}
{{- end }}
{{- end }}

{{/*
A volume of the values with the fields that its type determines, as JSON: capacity, accessMode, storageClassName,
volumeName, mountOptions, source (of a static volume), parameters (of a dynamic one).
Arguments: root, claim, volume.
*/}}
{{- define "efs.volume" -}}
{{- $given := .volume }}
{{- $name := coalesce (dig "persistentVolume" "name" "" $given) (dig "storageClass" "name" "" $given) "" }}
{{- $own := include "common.volumeName" (dict "root" .root "claim" .claim "name" $name) }}
{{- $options := list }}
{{- if eq $given.type "nfs" }}
{{- /* What EFS recommends: docs.aws.amazon.com/efs/latest/ug/mounting-fs-nfs-mount-settings.html. */}}
{{- $options = list "nfsvers=4.1" "rsize=1048576" "wsize=1048576" "hard" "timeo=600" "retrans=2" "noresvport" }}
{{- end }}
{{- if $given.iam }}{{ $options = append $options "iam" }}{{ end }}
{{- if $given.crossAccount }}{{ $options = append $options "crossaccount" }}{{ end }}
{{- $size := $given.size | default "50Gi" }}
{{- $volume := merge (dict) (deepCopy $given) (dict "size" $size "capacity" $size "accessMode" "ReadWriteMany"
    "mountOptions" $options "reclaimPolicy" "Retain" "path" "/" "storageClassName" "" "keep" false) }}
{{- if eq $given.type "dynamic" }}
{{- $parameters := dict "provisioningMode" "efs-ap" "fileSystemId" $given.fileSystemId "directoryPerms" ($given.directoryPerms | default "700") }}
{{- with $given.basePath }}{{ $_ := set $parameters "basePath" . }}{{ end }}
{{- if not (kindIs "invalid" $given.uid) }}{{ $_ := set $parameters "uid" (int64 $given.uid | toString) }}{{ end }}
{{- if not (kindIs "invalid" $given.gid) }}{{ $_ := set $parameters "gid" (int64 $given.gid | toString) }}{{ end }}
{{- range $key := list "az" "subPathPattern" }}
{{- with index $given $key }}{{ $_ := set $parameters $key . }}{{ end }}
{{- end }}
{{- range $key := list "gidRangeStart" "gidRangeEnd" }}
{{- with index $given $key }}{{ $_ := set $parameters $key (int64 . | toString) }}{{ end }}
{{- end }}
{{- range $key := list "ensureUniqueDirectory" "reuseAccessPoint" }}
{{- if hasKey $given $key }}{{ $_ := set $parameters $key (index $given $key | toString) }}{{ end }}
{{- end }}
{{- with $given.secret }}
{{- $_ := set $parameters "csi.storage.k8s.io/provisioner-secret-name" .name }}
{{- $_ := set $parameters "csi.storage.k8s.io/provisioner-secret-namespace" .namespace }}
{{- end }}
{{- $_ := set $volume "makesClass" (not $given.storageClassName) }}
{{- $_ := set $volume "parameters" $parameters }}
{{- $_ := set $volume "storageClassName" ($given.storageClassName | default $own) }}
{{- else }}
{{- $_ := set $volume "volumeName" $own }}
{{- $_ := set $volume "source" (include (printf "efs.%sSource" $given.type) (dict "volume" $volume) | fromJson) }}
{{- end }}
{{- toJson $volume }}
{{- end }}

{{/*
Arguments: volume.
*/}}
{{- define "efs.nfsSource" -}}
{{- dict "nfs" (dict "server" .volume.server "path" .volume.path) | toJson }}
{{- end }}

{{/*
The volume handle of the CSI driver: FILE-SYSTEM[:PATH[:ACCESS-POINT]].
Arguments: volume.
*/}}
{{- define "efs.csiSource" -}}
{{- $path := ternary "" .volume.path (eq .volume.path "/") }}
{{- $handle := printf "%s:%s:%s" .volume.fileSystemId $path (.volume.accessPointId | default "") | trimSuffix ":" | trimSuffix ":" }}
{{- $source := dict "driver" "efs.csi.aws.com" "volumeHandle" $handle }}
{{- $attributes := dict }}
{{- if eq (toString .volume.encryptInTransit) "false" }}{{ $_ := set $attributes "encryptInTransit" "false" }}{{ end }}
{{- with .volume.mountTargetIp }}{{ $_ := set $attributes "mounttargetip" . }}{{ end }}
{{- with $attributes }}{{ $_ := set $source "volumeAttributes" . }}{{ end }}
{{- dict "csi" $source | toJson }}
{{- end }}

{{/*
The digests of the immutable parts of a claim and its volume.
Arguments: volume (the result of efs.volume).
*/}}
{{- define "efs.immutable" -}}
{{- $parts := pick .volume "type" "source" "size" "accessMode" }}
{{- range $key := list "persistentVolume" "storageClass" }}
{{- with dig $key "name" "" $.volume }}{{ $_ := set $parts "name" . }}{{ end }}
{{- end }}
{{- if .volume.makesClass }}{{ $parts = merge $parts (pick .volume "parameters" "reclaimPolicy") }}
{{- else if not .volume.source }}{{ $parts = merge $parts (pick .volume "storageClassName") }}{{ end }}
{{- include "common.immutable.digests" (dict "parts" $parts) }}
{{- end }}

{{/*
A description of where the data is.
Arguments: volume (the result of efs.volume).
*/}}
{{- define "efs.place" -}}
{{- if eq .volume.type "nfs" }}{{ .volume.server }}:{{ .volume.path }}
{{- else if eq .volume.type "csi" }}{{ .volume.source.csi.volumeHandle }}
{{- else }}a new access point by StorageClass {{ .volume.storageClassName }}
{{- end }}
{{- end }}

{{/*
The name of the Job that sets the owner of a folder. It changes with the owner and the folder, since the pod template of a Job cannot change.
Arguments: claim, volume (the result of efs.volume).
*/}}
{{- define "efs.ownerJob" -}}
{{- printf "%s-owner-%s" .claim (pick .volume "source" "uid" "gid" "directoryPerms" | toJson | sha256sum | trunc 8) }}
{{- end }}

{{/*
Not empty for a static volume whose folder is given to an owner.
Arguments: volume (the result of efs.volume).
*/}}
{{- define "efs.hasOwner" -}}
{{- if and .volume.source (not (kindIs "invalid" .volume.uid)) }}true{{ end }}
{{- end }}
