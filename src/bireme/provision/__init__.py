"""From ``--nodes`` to what creates such nodes on EKS: an eksctl configuration, or Karpenter's objects."""

CAPACITIES = ("on-demand", "spot", "reservation", "block")
"""How accelerated nodes are bought."""
