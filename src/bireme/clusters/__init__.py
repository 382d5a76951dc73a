"""Clusters by provider: what every cluster offers, and how one is made, found and removed."""

DEFAULT_NAME = "bireme"
ADDONS = ("kueue", "karpenter", "flux", "argocd")
