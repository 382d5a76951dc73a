"""Kinds that an add-on brings with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bireme.clusters.base import Cluster
from bireme.clusters.waiting import until

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SECONDS = 120


def add_kinds(cluster: Cluster, definitions: Iterable[Mapping[str, Any]]) -> None:
    """Create these CustomResourceDefinitions; returns when the API server serves them. Raises BiremeError."""
    paths = []
    for each in definitions:
        cluster.api.create(_DEFINITIONS, each)
        spec = each["spec"]
        served = (version["name"] for version in spec["versions"] if version["served"])
        paths += [f"/apis/{spec['group']}/{version}/{spec['names']['plural']}" for version in served]
    until(lambda: all(map(cluster.api.find, paths)), _SECONDS, "the new kinds to be served")
