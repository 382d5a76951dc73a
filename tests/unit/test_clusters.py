"""Finding clusters: by provider, by name, and those that are there already."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bireme.clusters import (
    ADDONS,
    ClusterInfo,
    check_name,
    cluster_dir,
    find,
    list_clusters,
    provider,
    start_addon,
    write_info,
)
from bireme.clusters.api import Api
from bireme.clusters.existing import ExistingCluster, ExistingProvider
from bireme.errors import BiremeError
from bireme.paths import Paths
from bireme.tools import Toolbox


def info(paths: Paths, name: str = "blue") -> ClusterInfo:
    return ClusterInfo(
        "embedded", name, paths.state / "kubeconfig", None, {"p4d.24xlarge": 3, "cpu": 1}, "1.36.3"
    )


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """A kubeconfig of a server that nobody runs."""
    file = tmp_path / "kubeconfig"
    context = {"name": "blue", "context": {"cluster": "there", "user": "me"}}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "blue",
        "contexts": [context],
        "clusters": [{"name": "there", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": {}}],
    }
    file.write_text(yaml.safe_dump(content))
    return file


def test_a_cluster_is_found_as_it_was_written(own_paths: Paths) -> None:
    cluster_dir(own_paths, "blue").mkdir(parents=True)
    write_info(own_paths, info(own_paths))
    assert find(own_paths, "blue") == info(own_paths)
    assert list_clusters(own_paths) == (info(own_paths),)


def test_where_there_is_no_cluster_none_is_found(own_paths: Paths) -> None:
    assert find(own_paths, "blue") is None
    assert list_clusters(own_paths) == ()


def test_facts_that_cannot_be_read_say_how_to_clear_them(own_paths: Paths) -> None:
    folder = cluster_dir(own_paths, "blue")
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text("{")
    with pytest.raises(BiremeError, match=r"meta\.json cannot be read .* bireme down --name blue"):
        find(own_paths, "blue")


@pytest.mark.parametrize("name", ["", "Blue", "a.b", "../up", "-a", "a-", "x" * 41])
def test_names_that_could_leave_the_state_directory_or_dns_are_refused(name: str) -> None:
    with pytest.raises(BiremeError, match="cannot name a cluster"):
        check_name(name)


def test_a_provider_with_a_typo_gets_the_right_one_suggested(own_paths: Paths) -> None:
    with pytest.raises(BiremeError, match="unknown cluster provider 'embeded': did you mean embedded"):
        provider("embeded", own_paths, Toolbox(own_paths))


@pytest.mark.parametrize("name", ADDONS)
def test_addons_are_started_for_embedded_clusters_only(own_paths: Paths, tmp_path: Path, name: str) -> None:
    cluster = ExistingCluster(tmp_path / "kubeconfig", "mine")
    with pytest.raises(BiremeError, match=f"{name} is started for embedded clusters only"):
        start_addon(name, cluster, Toolbox(own_paths))


def test_an_existing_cluster_needs_a_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(BiremeError, match=r"there is no kubeconfig at .*missing: give one with --kubeconfig"):
        ExistingProvider(tmp_path / "missing").get()


def test_an_existing_cluster_is_neither_made_nor_removed(kubeconfig: Path) -> None:
    existing = ExistingProvider(kubeconfig)
    with pytest.raises(BiremeError, match="an existing cluster keeps the nodes it has"):
        existing.up("blue", {"p4d.24xlarge": 3})
    assert existing.down("blue") is False
    assert kubeconfig.exists()


def test_a_cluster_that_does_not_answer_is_named(kubeconfig: Path) -> None:
    with pytest.raises(
        BiremeError, match=r"the cluster at https://127\.0\.0\.1:1 does not answer: .*refused"
    ):
        ExistingProvider(kubeconfig).up("blue", {})


def test_a_context_that_is_not_in_the_kubeconfig_is_named(kubeconfig: Path) -> None:
    with pytest.raises(BiremeError, match=r"cannot be used as kubeconfig: .*green"):
        Api(kubeconfig, "green")
