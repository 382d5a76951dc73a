"""From ``--nodes`` to what creates such nodes on EKS: an eksctl configuration, or Karpenter's objects."""

from bireme.provision.costs import Estimate, Prices, estimate, load_prices
from bireme.provision.eksctl import cluster_config
from bireme.provision.groups import Capacity, Fleet, Group
from bireme.provision.karpenter import karpenter_objects
from bireme.provision.text import as_yaml

__all__ = [
    "Capacity",
    "Estimate",
    "Fleet",
    "Group",
    "Prices",
    "as_yaml",
    "cluster_config",
    "estimate",
    "karpenter_objects",
    "load_prices",
]
