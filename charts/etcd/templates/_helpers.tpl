{{- define "etcd.peerService" -}}
{{- include "common.fullname" (dict "root" .) }}-peers
{{- end }}

{{/*
etcd's configuration file with the settings that all members share. A member adds its name, its URLs and the members that
it joins. Health has a port of its own, so that probes need no client certificate.
*/}}
{{- define "etcd.config" -}}
{{- $config := dict
    "listen-client-urls" "http://0.0.0.0:2379"
    "listen-peer-urls" "http://0.0.0.0:2380"
    "listen-metrics-urls" "http://0.0.0.0:2381"
    "quota-backend-bytes" (mul (int64 .Values.quotaMiB) 1048576)
    "auto-compaction-mode" "periodic"
    "auto-compaction-retention" (printf "%dm" (int64 .Values.compaction.retentionMinutes))
    "logger" "zap" }}
{{- if .Values.v2API }}{{ $_ := set $config "enable-v2" true }}{{ end }}
{{- /* Nobody guesses 32 random characters; with etcd's default each worker's login takes a twentieth of a second of CPU. */}}
{{- if include "etcd.makesPassword" . }}{{ $_ := set $config "bcrypt-cost" 4 }}{{ end }}
{{- range $side, $use := dict "client" "server" "peer" "peer" }}
{{- if include "etcd.tlsSecret" (dict "root" $ "use" $use) }}
{{- $urls := printf "listen-%s-urls" $side }}
{{- $_ := set $config $urls (get $config $urls | replace "http:" "https:") }}
{{- $folder := printf "/bireme/tls/%s" $use }}
{{- $_ := set $config (printf "%s-transport-security" $side) (dict
    "cert-file" (printf "%s/tls.crt" $folder)
    "key-file" (printf "%s/tls.key" $folder)
    "trusted-ca-file" (printf "%s/ca.crt" $folder)
    "client-cert-auth" (not (empty (include "etcd.tlsSecret" (dict "root" $ "use" $side))))) }}
{{- end }}
{{- end }}
{{- toPrettyJson $config }}
{{- end }}

{{/*
The Secret for one use of TLS; empty where there is none.
Arguments: root, use (server, client or peer).
*/}}
{{- define "etcd.tlsSecret" -}}
{{- $tls := .root.Values.tls }}
{{- if $tls.certManager.enabled }}
{{- printf "%s-%s-tls" (include "common.fullname" (dict "root" .root)) .use }}
{{- else }}
{{- index $tls (printf "%sSecret" .use) | default "" }}
{{- end }}
{{- end }}

{{/*
How clients use TLS, as JSON {secret, certificate}: the Secret with ca.crt, and whether clients send its tls.crt.
Arguments: the root of this chart (for a parent chart, .Subcharts.etcd).
*/}}
{{- define "etcd.clientTls" -}}
{{- $client := include "etcd.tlsSecret" (dict "root" . "use" "client") }}
{{- $server := include "etcd.tlsSecret" (dict "root" . "use" "server") }}
{{- dict "secret" (ternary "" ($client | default $server) (empty $server)) "certificate" (not (empty $client)) | toJson }}
{{- end }}

{{/*
The host names of the members, with commas: of the most that the chart allows, so that one more changes no certificate and
no client.
*/}}
{{- define "etcd.memberNames" -}}
{{- $fullname := include "common.fullname" (dict "root" .) }}
{{- $names := list }}
{{- range $ordinal := list 0 1 2 3 4 }}{{ $names = append $names (printf "%s-%d.%s.%s.svc" $fullname $ordinal (include "etcd.peerService" $) $.Release.Namespace) }}{{ end }}
{{- join "," $names }}
{{- end }}

{{- define "etcd.serviceName" -}}
{{- include "common.fullname" (dict "root" .) }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/*
Where clients reach etcd, with commas: at the Service, and at each member by its own name, because the Service goes on to
send connections to a member that has just fallen silent.
Arguments: the root of this chart (for a parent chart, .Subcharts.etcd).
*/}}
{{- define "etcd.endpoints" -}}
{{- $names := printf "%s,%s" (include "etcd.serviceName" .) (include "etcd.memberNames" .) }}
{{- printf "%s:2379" ($names | replace "," ":2379,") }}
{{- end }}

{{/*
The spec of a pod that runs one command as a client of the members.
Arguments: root, name (of the container), command, waitSeconds, credentials {env name: Secret key},
env, mounts and volumes (YAML, optional), serviceAccountName (optional), component (of its runtime, optional: member).
*/}}
{{- define "etcd.clientPod" -}}
{{- $root := required "etcd.clientPod needs root" .root }}
{{- $tls := include "etcd.clientTls" $root | fromJson -}}
restartPolicy: Never
automountServiceAccountToken: false
{{- with .serviceAccountName }}
serviceAccountName: {{ . | quote }}
{{- end }}
{{- include "common.imagePullSecrets" (dict "root" $root) }}
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
containers:
  - name: {{ required "etcd.clientPod needs name" .name | quote }}
    image: {{ include "common.image" (dict "root" $root "image" $root.Values.joinImage) | quote }}
    imagePullPolicy: {{ $root.Values.joinImage.pullPolicy | quote }}
    command:
      {{- toYaml .command | nindent 6 }}
    env:
      - {name: PYTHONPATH, value: /bireme/runtime}
      - {name: BIREME_ETCD_ENDPOINTS, value: "{{ include "common.fullname" (dict "root" $root) }}.{{ $root.Release.Namespace }}.svc:2379"}
      - {name: BIREME_WAIT_SECONDS, value: "{{ int64 (required "etcd.clientPod needs waitSeconds" .waitSeconds) }}"}
      {{- include "runtime.etcdTls.env" $tls | nindent 6 }}
      {{- include "etcd.authEnv" (dict "root" $root "keys" .credentials) | nindent 6 }}
      {{- with .env }}{{ trim . | nindent 6 }}{{ end }}
    resources:
      {{- toYaml $root.Values.helperResources | nindent 6 }}
    securityContext:
      {{- toYaml $root.Values.securityContext | nindent 6 }}
    volumeMounts:
      - {name: runtime, mountPath: /bireme/runtime, readOnly: true}
      {{- include "runtime.etcdTls.mount" $tls | nindent 6 }}
      {{- with .mounts }}{{ trim . | nindent 6 }}{{ end }}
volumes:
  {{- include "runtime.volume" (dict "root" $root "component" (.component | default "member")) | nindent 2 }}
  {{- include "runtime.etcdTls.volume" $tls | nindent 2 }}
  {{- with .volumes }}{{ trim . | nindent 2 }}{{ end }}
{{- end }}

{{/*
Not empty where the chart makes the users' passwords.
Arguments: the root of this chart (for a parent chart, .Subcharts.etcd).
*/}}
{{- define "etcd.makesPassword" -}}
{{- if and .Values.auth.enabled (not .Values.auth.existingSecret) }}true{{ end }}
{{- end }}

{{/*
The Secret with the users; empty without users.
Arguments: the root of this chart (for a parent chart, .Subcharts.etcd).
*/}}
{{- define "etcd.userSecret" -}}
{{- if .Values.auth.enabled }}{{ .Values.auth.existingSecret | default (printf "%s-users" (include "common.fullname" (dict "root" .))) }}{{ end }}
{{- end }}

{{/*
The variables with the user of init containers and checks, if there are users.
Arguments: root, keys {env name: Secret key}.
*/}}
{{- define "etcd.authEnv" -}}
{{- if .root.Values.auth.enabled }}
{{- range $name, $key := .keys }}
- name: {{ $name | quote }}
  valueFrom:
    secretKeyRef: {name: {{ include "etcd.userSecret" $.root | quote }}, key: {{ $key | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/*
The container that restores the snapshot into the data directory of member 0, which the others join. Revisions continue
well above those of the snapshot, so that watches from before the restore fail instead of missing changes. The token is
that of member.py, so that clients see the same cluster, which has lost data, and not another one.
*/}}
{{- define "etcd.restoreCommand" -}}
{{- $name := printf "%s-0" (include "common.fullname" (dict "root" .)) }}
{{- $scheme := ternary "http" "https" (empty (include "etcd.tlsSecret" (dict "root" . "use" "peer"))) }}
{{- $domain := printf "%s.%s.svc" (include "etcd.peerService" .) .Release.Namespace }}
{{- $url := printf "%s://%s.%s:2380" $scheme $name $domain -}}
- etcdutl
- snapshot
- restore
- {{ printf "/snapshots/%s" .Values.restore.file | quote }}
- --data-dir=/bireme/restored/data
- --name={{ $name }}
- --initial-cluster={{ $name }}={{ $url }}
- --initial-advertise-peer-urls={{ $url }}
- --initial-cluster-token={{ trimSuffix "-0" $name }}.{{ $domain }}
- --bump-revision=1000000000
- --mark-compacted
{{- end }}

{{/*
The variable with the user, for only root may take snapshots and defragment. Empty without users.
*/}}
{{- define "etcd.rootUser" -}}
{{- if .Values.auth.enabled -}}
- {name: BIREME_ETCD_USERNAME, value: root}
{{- end }}
{{- end }}

{{/*
The mount /snapshots and its volume (the claim, or for S3 an emptyDir), each as a list of one.
Arguments: from {claimName, subPath, url}.
*/}}
{{- define "etcd.snapshotMount" -}}
- {name: snapshots, mountPath: /snapshots{{ with .from.subPath }}, subPath: {{ . | quote }}{{ end }}}
{{- end }}

{{- define "etcd.snapshotVolume" -}}
- {name: snapshots, {{ if .from.url }}emptyDir: {}{{ else }}persistentVolumeClaim: {claimName: {{ .from.claimName | quote }}}{{ end }}}
{{- end }}

{{/*
Not empty if snapshots are saved to S3 or restored from it.
*/}}
{{- define "etcd.usesS3" -}}
{{- if or (and .Values.backup.enabled .Values.backup.url) (and .Values.restore.enabled .Values.restore.url) }}true{{ end }}
{{- end }}

{{/*
The variables with the place of the snapshots in S3.
Arguments: root, from {url}.
*/}}
{{- define "etcd.s3Env" -}}
- {name: BIREME_BACKUP_URL, value: {{ .from.url | quote }}}
{{ include "runtime.s3.env" (dict "s3" .root.Values.s3) }}
{{- end }}

{{- define "etcd.immutable" -}}
{{- $parts := dict
    "persistence" (pick .Values.persistence "enabled" "size" "storageClassName")
    "name" (include "etcd.peerService" .)
    "TLS between members" (not (empty (include "etcd.tlsSecret" (dict "root" . "use" "peer")))) }}
{{- include "common.immutable.digests" (dict "parts" $parts) }}
{{- end }}

{{/*
The values' affinity, with anti-affinity between members unless the values have a podAntiAffinity.
*/}}
{{- define "etcd.affinity" -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "common.selectorLabels" (dict "root" . "component" "member") | fromYaml)) }}
{{- $apart := dict }}
{{- if eq .Values.antiAffinity "hard" }}
{{- $apart = dict "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) }}
{{- else if eq .Values.antiAffinity "soft" }}
{{- $apart = dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term))) }}
{{- end }}
{{- toYaml (merge (deepCopy .Values.affinity) $apart) }}
{{- end }}

{{/*
Not empty for an etcd without /livez and /readyz, which are in 3.5.11 and newer.
*/}}
{{- define "etcd.isOld" -}}
{{- $version := regexFind "[0-9]+\\.[0-9]+(\\.[0-9]+)?" (toString .Values.image.tag) }}
{{- if and $version (semverCompare "<3.5.11-0" $version) }}true{{ end }}
{{- end }}

{{/*
The handler of a probe. /livez does not depend on the other members: the loss of the quorum must not restart the remaining
ones. An old etcd has nothing like it but its port.
Arguments: root, path (of a new etcd), old (what an old one is asked).
*/}}
{{- define "etcd.probe" -}}
{{- if not (include "etcd.isOld" .root) }}httpGet: {path: {{ .path }}, port: health}
{{- else }}{{ .old }}
{{- end }}
{{- end }}
