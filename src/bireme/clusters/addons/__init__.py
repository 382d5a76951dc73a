"""Kueue and Karpenter at work for a cluster that runs no containers: `bireme up --with`."""
