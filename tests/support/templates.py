"""Templates of small charts for tests."""

SEEN = """apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}
data:
  upgrade: {{ .Release.IsUpgrade | quote }}
  kube: {{ .Capabilities.KubeVersion.Version }}
  monitored: {{ .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" | quote }}
"""
"""What a template sees of the release and the cluster. Further lines are further data."""
