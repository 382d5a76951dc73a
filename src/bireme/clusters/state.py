"""The facts of each cluster on disk.

A cluster has one directory, ``<state>/clusters/<name>/``, whose meta.json holds its ClusterInfo.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from bireme.clusters.base import ClusterInfo
from bireme.core.errors import BiremeError, refuse_name
from bireme.core.paths import Paths

_META = "meta.json"


def cluster_dir(paths: Paths, name: str) -> Path:
    """The directory that holds everything of the cluster ``name``. Raises BiremeError for a bad name."""
    refuse_name("--cluster", name, 40)
    return paths.state / "clusters" / name


def write_info(paths: Paths, info: ClusterInfo) -> None:
    """Write the facts of a cluster into its directory. Readers see the old or the new ones, never a part."""
    file = cluster_dir(paths, info.name) / _META
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(info.to_json(), indent=2) + "\n", encoding="utf-8")
    os.replace(fresh, file)


def find(paths: Paths, name: str) -> ClusterInfo | None:
    """The facts of the cluster ``name``, or None when there is none (or it is only half made)."""
    file = cluster_dir(paths, name) / _META
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
        return ClusterInfo(**meta | {"kubeconfig": Path(meta["kubeconfig"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise BiremeError(
            f"{file} cannot be read ({error}): remove the cluster with: bireme down --cluster {name}"
        ) from error


def made_by(paths: Paths, provider: str, name: str) -> ClusterInfo:
    """The facts of the cluster ``name`` of a provider. Raises BiremeError when it has made none."""
    info = find(paths, name)
    if info is None or info.provider != provider:
        raise BiremeError(
            f"there is no {provider} cluster {name}: "
            f"start it with: bireme up --provider {provider} --cluster {name}"
        )
    return info


def claim(folder: Path, is_there: bool = False) -> None:
    """Make the directory of a new cluster. Raises BiremeError where there is one, or else ``is_there``."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        if not is_there:
            folder.mkdir(mode=0o700)
            return
    raise BiremeError(
        f"the cluster {folder.name} is there already, or was left half made: take another --cluster, "
        f"or remove it with: bireme down --cluster {folder.name}"
    )


def list_clusters(paths: Paths) -> tuple[ClusterInfo, ...]:
    """Every cluster of this state directory, by name."""
    folders = sorted((paths.state / "clusters").glob(f"*/{_META}"))
    found = (find(paths, file.parent.name) for file in folders)
    return tuple(info for info in found if info)
