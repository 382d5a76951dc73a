{{/*
A NetworkPolicy that lets the release work in a namespace that denies all traffic: its pods reach each other on every port
(NCCL, MPI and parameter servers take any), and DNS; all else is closed to them unless a rule opens it.
Arguments: root (values networkPolicy), component, egress and ingress (lists of rules that follow from the values; optional).
*/}}
{{- define "common.networkPolicy" -}}
{{- $root := required "common.networkPolicy needs root" .root }}
{{- $own := $root.Values.networkPolicy }}
{{- if $own.enabled -}}
{{- $release := dict "matchLabels" (dict "app.kubernetes.io/instance" $root.Release.Name) }}
{{- $within := list (dict "podSelector" $release) -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "common.fullname" (dict "root" $root) | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "common.labels" (dict "root" $root "component" .component) | nindent 4 }}
spec:
  podSelector:
    {{- toYaml $release | nindent 4 }}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        {{- toYaml $within | nindent 8 }}
    {{- with concat (.ingress | default list) $own.ingress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  egress:
    - to:
        {{- toYaml $within | nindent 8 }}
    # DNS, which may be a cache on the node rather than a pod.
    - ports:
        - {protocol: UDP, port: 53}
        - {protocol: TCP, port: 53}
    {{- with concat (.egress | default list) $own.egress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end }}

{{/*
The egress rule to addresses outside the release, as a JSON list: empty if there are none. Names have no place in a
NetworkPolicy, so it opens their ports. Without a port, an address is one of HTTPS, or of HTTP if it says so.
Arguments: addresses (list of URLs or host:port).
*/}}
{{- define "common.networkPolicy.outside" -}}
{{- $ports := list }}
{{- range .addresses }}
{{- $port := regexFind ":[0-9]+(/|$)" (toString .) | trimPrefix ":" | trimSuffix "/" }}
{{- $ports = append $ports ($port | default (ternary "80" "443" (hasPrefix "http://" (toString .)))) }}
{{- end }}
{{- $rules := list }}
{{- range $port := $ports | uniq | sortAlpha }}{{ $rules = append $rules (dict "protocol" "TCP" "port" (int64 $port)) }}{{ end }}
{{- toJson (ternary (list (dict "ports" $rules)) list (not (empty $rules))) }}
{{- end }}

{{/*
The ingress rule that opens one port to all, as a JSON list.
Arguments: port.
*/}}
{{- define "common.networkPolicy.open" -}}
{{- list (dict "ports" (list (dict "protocol" "TCP" "port" (int64 .port)))) | toJson }}
{{- end }}

{{/*
The egress rule to the API server, as a JSON list: a policy sees the server's own port, 443 on EKS and 6443 elsewhere. The
first is that of AWS's services, too.
*/}}
{{- define "common.networkPolicy.api" -}}
{{- list (dict "ports" (list (dict "protocol" "TCP" "port" 443) (dict "protocol" "TCP" "port" 6443))) | toJson }}
{{- end }}

{{/*
The egress rule to what gives credentials to pods on EC2, over HTTP, as a JSON list: EKS Pod Identity (169.254.170.23) and
the instance metadata.
*/}}
{{- define "common.networkPolicy.links" -}}
{{- $links := list (dict "ipBlock" (dict "cidr" "169.254.170.23/32")) (dict "ipBlock" (dict "cidr" "169.254.169.254/32")) }}
{{- list (dict "to" $links "ports" (list (dict "protocol" "TCP" "port" 80))) | toJson }}
{{- end }}

{{/*
What S3 needs: its server, and what gives credentials.
Arguments: root (values s3), urls (list; empty for no traffic).
*/}}
{{- define "common.networkPolicy.s3" -}}
{{- $rules := list }}
{{- if .urls }}
{{- $addresses := .urls }}
{{- with .root.Values.s3.endpoint }}{{ $addresses = append $addresses . }}{{ end }}
{{- $rules = include "common.networkPolicy.outside" (dict "addresses" $addresses) | fromJsonArray }}
{{- $rules = concat $rules (include "common.networkPolicy.links" .root | fromJsonArray) }}
{{- end }}
{{- toJson $rules }}
{{- end }}
