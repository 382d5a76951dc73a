"""Kueue, Karpenter and Flux at work for a cluster that runs no containers: `bireme up --with`."""
