"""Finding clusters: by provider, by name, and those that are there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters import ADDONS
from bireme.clusters.api import Api
from bireme.clusters.base import Cluster, ClusterInfo
from bireme.clusters.existing import existing
from bireme.clusters.programs import last_lines
from bireme.clusters.registry import provider, start_addon
from bireme.clusters.state import cluster_dir, find, list_clusters, write_info
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
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


def test_facts_that_cannot_be_read_say_how_to_clear_them(own_paths: Paths) -> None:
    folder = cluster_dir(own_paths, "blue")
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text("{")
    with pytest.raises(BiremeError, match=r"meta\.json cannot be read .* bireme down --cluster blue"):
        find(own_paths, "blue")


@pytest.mark.parametrize("name", ["", "Blue", "a.b", "../up", "-a", "a-", "x" * 41])
def test_names_that_could_leave_the_state_directory_or_dns_are_refused(own_paths: Paths, name: str) -> None:
    with pytest.raises(BiremeError, match="cannot be a name"):
        cluster_dir(own_paths, name)


def test_a_provider_with_a_typo_gets_the_right_one_suggested(own_paths: Paths) -> None:
    with pytest.raises(BiremeError, match="unknown cluster provider 'embeded': did you mean embedded"):
        provider("embeded", own_paths, Toolbox(own_paths))


@pytest.mark.parametrize("name", ADDONS)
def test_addons_are_started_for_embedded_clusters_only(own_paths: Paths, tmp_path: Path, name: str) -> None:
    cluster = Cluster("mine", "existing", tmp_path / "kubeconfig", "mine")
    with pytest.raises(BiremeError, match=f"{name} is started for embedded clusters only"):
        start_addon(name, cluster, Toolbox(own_paths))


def test_an_existing_cluster_needs_a_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(BiremeError, match=r"no kubeconfig at .*missing: name one .* or start .*: bireme up"):
        existing(tmp_path / "missing")


def test_a_cluster_that_does_not_answer_is_named(kubeconfig: Path) -> None:
    with pytest.raises(
        BiremeError, match=r"the cluster at https://127\.0\.0\.1:1 does not answer: .*refused"
    ):
        existing(kubeconfig)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"contexts": 5}, "`contexts` is 5, it must be a list"),
        ({"contexts": ["x"]}, '`contexts[0]` is "x", it must be a mapping'),
        ({"clusters": None}, "`clusters` is null, it must be a list"),
        (
            {"clusters": [{"name": "there", "cluster": {}}]},
            "`clusters[0].cluster.server` is missing: kubeconfig needs it",
        ),
        (
            {"clusters": [{"name": "there", "cluster": {"server": "not a url"}}]},
            '`clusters[0].cluster.server` is "not a url", it must match ^https?://',
        ),
        ({"users": [{"name": "me", "user": {"token": 5}}]}, "`users[0].user.token` is 5, it must be text"),
        ({"users": [{"name": "me", "user": {"token": "a\nb"}}]}, "the token of user me has characters"),
        (
            {"users": [{"name": "me", "user": {"exec": {"command": "no-such-login"}}}]},
            "user me logs in by no-such-login, which is not on PATH: install it",
        ),
        ({"users": [{"name": "me", "user": {"auth-provider": {"name": "gcp"}}}]}, 'it must be "oidc"'),
        ({"current-context": None}, "it names no current context; there are: blue"),
        ({"current-context": "green"}, "green"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_one_sentence(
    kubeconfig: Path, changes: dict[str, Any], sentence: str
) -> None:
    kubeconfig.write_text(yaml.safe_dump(yaml.safe_load(kubeconfig.read_text()) | changes))
    with pytest.raises(BiremeError) as refused:
        Api(kubeconfig)
    assert str(refused.value).startswith(f"{kubeconfig} cannot be used as kubeconfig: ")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("just words", "holds a string, not a mapping"),
        ("a: [", "is not valid YAML"),
        ("\xff\xfe", "is not UTF-8 text"),
        ("a: " + "[" * 5000 + "]" * 5000, "is nested more than 100 deep"),
    ],
    ids=["text", "broken", "binary", "deep"],
)
def test_a_kubeconfig_that_cannot_be_read_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(BiremeError, match=sentence):
        Api(file)


def test_files_that_a_kubeconfig_names_are_looked_for_beside_it(kubeconfig: Path) -> None:
    content = yaml.safe_load(kubeconfig.read_text())
    content["users"][0]["user"] = {"tokenFile": "token"}
    kubeconfig.write_text(yaml.safe_dump(content))
    with pytest.raises(BiremeError, match=r"cannot be used as kubeconfig: .*token"):
        Api(kubeconfig)
    (kubeconfig.parent / "token").write_text("secret")
    assert Api(kubeconfig).server == "https://127.0.0.1:1"


def test_what_a_go_program_says_before_its_stack_trace_is_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "etcd.log"
    log.write_text("panic: write: no space left on device\n\ngoroutine 1 [running]:\nmain.main()\n")

    assert last_lines(log, 1) == ["panic: write: no space left on device"]
