{{/*
A NetworkPolicy that lets the release work in a namespace that denies all traffic: its pods reach each other on every port
(NCCL, MPI and parameter servers take any), and DNS; all else is closed to them unless a rule opens it. `enabled: ingress`
leaves open what they reach.
Arguments: root (values networkPolicy), component, egress and ingress (lists of texts, each with rules in YAML or empty; optional).
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
  policyTypes: [Ingress{{ if eq (toString $own.enabled) "true" }}, Egress{{ end }}]
  ingress:
    - from:
        {{- toYaml $within | nindent 8 }}
    {{- range append (.ingress | default list) (include "common.networkPolicy.own" (dict "rules" $own.ingress)) }}
    {{- with trim . }}{{ . | nindent 4 }}{{ end }}
    {{- end }}
  {{- if eq (toString $own.enabled) "true" }}
  egress:
    - to:
        {{- toYaml $within | nindent 8 }}
    # DNS, which may be a cache on the node rather than a pod.
    - ports:
        - {protocol: UDP, port: 53}
        - {protocol: TCP, port: 53}
    {{- range append (.egress | default list) (include "common.networkPolicy.own" (dict "rules" $own.egress)) }}
    {{- with trim . }}{{ . | nindent 4 }}{{ end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
An ingress rule in YAML.
Arguments: ports (list), from (peers, empty for all).
*/}}
{{- define "common.networkPolicy.from" -}}
{{- $ports := list }}
{{- range .ports }}{{ $ports = append $ports (dict "protocol" "TCP" "port" (int64 .)) }}{{ end }}
{{- with $ports }}{{ list (merge (dict "ports" .) (ternary (dict "from" $.from) dict (not (empty $.from)))) | toYaml }}{{ end }}
{{- end }}

{{/*
Rules of the values, in YAML; empty for none.
Arguments: rules (list).
*/}}
{{- define "common.networkPolicy.own" -}}
{{- with .rules }}{{ toYaml . }}{{ end }}
{{- end }}

{{/*
The egress rule to addresses outside the release, in YAML: empty if there are none. Names have no place in a NetworkPolicy,
so it opens their ports. Without a port, an address is one of HTTPS, or of HTTP if it says so.
Arguments: addresses (list of URLs or host:port; empty ones are left out).
*/}}
{{- define "common.networkPolicy.outside" -}}
{{- $ports := list }}
{{- range compact .addresses }}
{{- $port := regexFind ":[0-9]+(/|$)" (toString .) | trimPrefix ":" | trimSuffix "/" }}
{{- $ports = append $ports ($port | default (ternary "80" "443" (hasPrefix "http://" (toString .)))) }}
{{- end }}
{{- $rules := list }}
{{- range $port := $ports | uniq | sortAlpha }}{{ $rules = append $rules (dict "protocol" "TCP" "port" (int64 $port)) }}{{ end }}
{{- with $rules }}{{ toYaml (list (dict "ports" .)) }}{{ end }}
{{- end }}

{{/*
A rule that opens one port to all, in YAML.
Arguments: port.
*/}}
{{- define "common.networkPolicy.open" -}}
{{- list (dict "ports" (list (dict "protocol" "TCP" "port" (int64 .port)))) | toYaml }}
{{- end }}

{{/*
The egress rule to the API server, in YAML. Policies see the server's real port: 443 on EKS, 6443 elsewhere. 443 also opens
AWS's APIs.
*/}}
{{- define "common.networkPolicy.api" -}}
{{- list (dict "ports" (list (dict "protocol" "TCP" "port" 443) (dict "protocol" "TCP" "port" 6443))) | toYaml }}
{{- end }}

{{/*
The egress rule to what gives credentials to pods on EC2, over HTTP, in YAML: EKS Pod Identity (169.254.170.23) and
the instance metadata.
*/}}
{{- define "common.networkPolicy.links" -}}
{{- $links := list (dict "ipBlock" (dict "cidr" "169.254.170.23/32")) (dict "ipBlock" (dict "cidr" "169.254.169.254/32")) }}
{{- list (dict "to" $links "ports" (list (dict "protocol" "TCP" "port" 80))) | toYaml }}
{{- end }}

{{/*
The egress rules to S3, in YAML: to its server, and to what gives credentials.
Arguments: root (values s3), urls (list; empty for no traffic).
*/}}
{{- define "common.networkPolicy.s3" -}}
{{- with .urls }}
{{- include "common.networkPolicy.outside" (dict "addresses" (append . $.root.Values.s3.endpoint)) }}
{{ include "common.networkPolicy.links" $.root }}
{{- end }}
{{- end }}

{{/*
The variables of a proxy, as a list of EnvVar. git knows no HTTP_PROXY.
Arguments: url, except (further hosts, optional).
*/}}
{{- define "common.proxy" -}}
{{- if .url -}}
- {name: HTTPS_PROXY, value: {{ .url | quote }}}
- {name: http_proxy, value: {{ .url | quote }}}
- {name: NO_PROXY, value: {{ join "," (compact (list "localhost,127.0.0.1,169.254.169.254,169.254.170.23,.svc,.cluster.local" .except)) | quote }}}
{{- end }}
{{- end }}
