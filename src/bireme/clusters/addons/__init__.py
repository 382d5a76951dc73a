"""Kueue, Karpenter, Flux and Argo CD at work for a cluster that runs no containers: `bireme up --with`."""
