"""From ``--nodes`` to what creates such nodes on EKS: an eksctl configuration, or Karpenter's objects."""
