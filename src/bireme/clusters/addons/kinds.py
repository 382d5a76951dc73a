"""Kinds that an add-on brings with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bireme.clusters.base import Cluster
from bireme.clusters.waiting import until

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SECONDS = 120


def definitions(*folders: Path) -> Iterator[dict[str, Any]]:
    """The CustomResourceDefinitions in the files of folders."""
    for file in (file for folder in folders for file in sorted(folder.glob("*.yaml"))):
        yield yaml.safe_load(file.read_text(encoding="utf-8"))


def add_kinds(cluster: Cluster, wanted: Iterable[Mapping[str, Any]]) -> None:
    """Create these CustomResourceDefinitions; returns when the API server serves them. Raises BiremeError."""
    paths = []
    for each in wanted:
        cluster.api.create(_DEFINITIONS, each)
        spec = each["spec"]
        served = (version["name"] for version in spec["versions"] if version["served"])
        paths += [f"/apis/{spec['group']}/{version}/{spec['names']['plural']}" for version in served]
    until(lambda: all(map(cluster.api.find, paths)), _SECONDS, "the new kinds to be served")
