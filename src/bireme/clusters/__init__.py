"""Clusters by provider: what every cluster offers, and how one is made, found and removed."""

DEFAULT_NAME = "bireme"
ADDONS = ("kueue", "karpenter", "flux", "argocd")
"""What `bireme up --with` starts beside a cluster."""
