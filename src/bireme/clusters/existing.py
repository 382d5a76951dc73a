"""A cluster that exists already: Bireme uses it, but neither makes nor removes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from bireme.clusters.base import Cluster
from bireme.clusters.kubeconfig import merged
from bireme.core.errors import BiremeError


def existing(kubeconfig: Path | None = None, context: str = "") -> Cluster:
    """The cluster of ``context``, "" for the current one, once its API server answers. Raises BiremeError.

    Where no ``kubeconfig`` is given, the files of ``$KUBECONFIG`` count together, else ~/.kube/config.
    """
    file = kubeconfig or _default_kubeconfig(os.environ)
    if not file.is_file():
        raise BiremeError(
            f"there is no kubeconfig at {file}: name one with --kubeconfig, "
            "or start a cluster on this machine with: bireme up"
        )
    cluster = Cluster(context or "current", "existing", file, context or None)
    cluster.api.greet()
    return cluster


def _default_kubeconfig(environ: Mapping[str, str]) -> Path:
    """The files of $KUBECONFIG as one, or else ~/.kube/config. Missing files are skipped, as kubectl does."""
    given = [Path(part) for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    there = [file for file in given if file.is_file()]
    if len(there) > 1:
        return merged(there)
    if given:
        return (there or given)[0]
    return Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"
