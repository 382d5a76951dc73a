"""`bireme check --from`: what an upgrade does to each object is what a real API server and Helm then do."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from bireme.check.upgrades import Upgrades, UpgradeVerdict
from bireme.cli import cli
from bireme.clusters.api import ApiError
from bireme.clusters.base import Cluster
from bireme.clusters.embedded import EmbeddedProvider
from bireme.core.paths import Paths
from bireme.helm import Charts, Renderer
from bireme.live.release import Release, Releases
from bireme.tools import Toolbox

Chart = Callable[..., Path]
POD = """
    metadata: {labels: {app: %(label)s}}
    spec: {containers: [{name: web, image: "registry.example.com/web:%(tag)s"}]}
"""
DEPLOYMENT = (
    """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %(replicas)s
  selector: {matchLabels: {app: %(label)s}}
  template:
"""
    + POD
)
STATEFUL_SET = """
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: store}
spec:
  serviceName: store
  replicas: 1
  updateStrategy: {type: %(strategy)s}
  selector: {matchLabels: {app: store}}
  template:
    metadata: {labels: {app: store}}
    spec: {containers: [{name: store, image: "registry.example.com/store:%(tag)s"}]}
  volumeClaimTemplates:
    - metadata: {name: %(claim)s}
      spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""
OTHERS = """
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {tag: "%(tag)s"}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Secret
metadata: {name: %(secret)s}
"""
# As metrics-server did: what names its namespace from now on stays where it is.
MAPS = """
---
apiVersion: v1
kind: ConfigMap
metadata: {name: keys}
data: {a: b%(key)s}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: placed%(place)s}
---
"""
KEPT = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: kepts.example.com, annotations: {helm.sh/resource-policy: keep}}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Kept, plural: kepts, singular: kept}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
"""
PLAIN = {
    "label": "web",
    "tag": "1",
    "replicas": "1",
    "strategy": "RollingUpdate",
    "claim": "data",
    "secret": "token",
}


@pytest.fixture
def chart(tmp_path: Path) -> Chart:
    """Write a chart: ``chart("2.0.0", tag="2")`` differs from the plain one in its image."""

    def write(version: str, before: str = "", home: Path | None = None, **differing: str) -> Path:
        folder = home or tmp_path / version / "shop"
        (folder / "templates").mkdir(parents=True, exist_ok=True)
        (folder / "Chart.yaml").write_text(f"{{apiVersion: v2, name: shop, version: {version}}}")
        (folder / "values.yaml").write_text("size: 1\n")
        text = (DEPLOYMENT + STATEFUL_SET + OTHERS) % (PLAIN | differing)
        (folder / "templates" / "all.yaml").write_text(before + text)
        return folder

    return write


@pytest.fixture
def verdict(
    cluster: Cluster, toolbox: Toolbox, renderer: Renderer, bireme_paths: Paths
) -> Callable[[Path, Path], UpgradeVerdict]:
    upgrades = Upgrades(cluster, toolbox, renderer, Charts(bireme_paths, toolbox), stand_ins=True)

    def ask(old: Path, new: Path) -> UpgradeVerdict:
        [found] = upgrades.verdicts(new, [str(old)])
        return found

    return ask


Ask = Callable[[Path, Path], UpgradeVerdict]


def told(verdict: UpgradeVerdict) -> dict[str, str]:
    return {each.object: each.verdict for each in verdict.objects if each.verdict != "unchanged"}


def further(replicas: str, tag: str, key: str, place: str) -> str:
    """A Deployment, a StatefulSet whose pods somebody else replaces, and two ConfigMaps."""
    few = DEPLOYMENT.replace("web", "few") % (PLAIN | {"replicas": replicas})
    quiet = STATEFUL_SET.replace("store", "quiet") % (PLAIN | {"strategy": "OnDelete", "tag": tag})
    return few + quiet + MAPS % {"key": key, "place": place}


def test_an_upgrade_that_changes_nothing_and_one_that_restarts_pods(verdict: Ask, chart: Chart) -> None:
    same = verdict(chart("1.0.0"), chart("1.0.1"))
    assert told(same) == {}
    assert str(same).splitlines()[1:] == ["  nothing changes"]
    before = further(replicas="1", tag="1", key=", b: c", place="")
    after = further(replicas="3", tag="2", key="", place=", namespace: {{ .Release.Namespace }}")
    found = verdict(chart("1.1.0", before), chart("2.0.0", after, tag="2", secret="key"))
    assert told(found) == {
        "ConfigMap/keys": "in place",
        "ConfigMap/settings": "in place",
        "Deployment/few": "in place",
        "Deployment/web": "restarts pods",
        "StatefulSet/quiet": "in place",
        "StatefulSet/store": "restarts pods",
        "Secret/key": "added",
        "Secret/token": "removed",
    }
    assert {
        "  removed: Secret/token",
        "  restarts pods (containers): Deployment/web, StatefulSet/store",
        "  added: Secret/key",
        "  in place (data): ConfigMap/keys, ConfigMap/settings",
    } <= set(str(found).splitlines())
    assert (found.refusal, found.rollback, list(found.findings())) == ("", "", [])


def test_what_the_api_server_refuses_is_said_in_its_own_words_for_each_object(
    verdict: Ask, chart: Chart
) -> None:
    found = verdict(chart("1.0.0"), chart("2.0.0", label="shop", claim="disk"))
    why = {each.object: each.why for each in found.objects if each.verdict == "refused"}
    assert "spec.selector: Invalid value" in why["Deployment/web"]
    assert "updates to statefulset spec for fields other than" in why["StatefulSet/store"]
    assert set(why) == {"Deployment/web", "StatefulSet/store"}
    # Helm's own upgrade agrees.
    assert "field is immutable" in found.refusal
    assert [(each.rule, each.path, each.severity) for each in found.findings()] == [
        ("upgrade", "Deployment/web", "error"),
        ("upgrade", "StatefulSet/store", "error"),
    ]


@pytest.mark.whole
def test_values_that_the_new_version_does_not_take_are_a_refusal(verdict: Ask, chart: Chart) -> None:
    gone = '{{ if .Values.size }}{{ fail "size: it is called replicas now" }}{{ end }}'
    found = verdict(chart("1.0.0"), chart("2.0.0", gone))
    assert found.refusal.endswith("size: it is called replicas now")
    [finding] = found.findings()
    assert finding.sentence.startswith("the upgrade from ")


def test_a_hook_that_fails_before_the_upgrade_is_a_refusal(verdict: Ask, chart: Chart) -> None:
    hook = """
apiVersion: v1
kind: ConfigMap
metadata: {name: Hook_, annotations: {helm.sh/hook: pre-upgrade}}
---
"""
    found = verdict(chart("1.0.0"), chart("2.0.0", hook))
    assert "Hook_" in found.refusal


@pytest.mark.whole
def test_kinds_of_an_operator_that_is_not_there_are_upgraded_too(verdict: Ask, chart: Chart) -> None:
    database = """
apiVersion: databases.example.com/v1
kind: Database
metadata: {name: one}
spec: {size: %s}
---
"""
    found = verdict(chart("1.0.0", database % 1), chart("2.0.0", database % 2))
    assert told(found) == {"Database/one": "in place"}


def test_what_a_release_leaves_is_not_in_the_way_of_the_next(verdict: Ask, chart: Chart) -> None:
    """Nor is what it keeps, and it is told where Helm cannot roll back."""
    # As argo-workflows and keda have them. A namespace takes seconds to go.
    before = "{apiVersion: v1, kind: Namespace, metadata: {name: beside}}\n---\n"
    sealed = "{apiVersion: v1, kind: ConfigMap, metadata: {name: sealed}, immutable: %s}\n---\n"
    old = chart("1.0.0", KEPT + before + sealed % "false")
    new = chart("2.0.0", before + sealed % "true", tag="2")
    found = [verdict(old, new) for _ in range(2)]
    assert [(each.untried, each.refusal) for each in found] == [("", "")] * 2
    assert told(found[1])["Deployment/web"] == "restarts pods"
    assert told(found[1])["CustomResourceDefinition/kepts.example.com"] == "kept"
    [finding] = found[1].findings()
    assert (finding.rule, finding.severity) == ("rollback", "warning")
    assert "field is immutable when `immutable` is set" in finding.sentence


def test_the_command_has_a_cluster_of_its_own_for_installs_and_upgrades(
    cluster: Cluster, chart: Chart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it is given that of the tests in place of one that it starts."""
    started: dict[str, Cluster] = {}
    monkeypatch.setattr(EmbeddedProvider, "up", lambda _, name, nodes: started.setdefault(name, cluster))
    monkeypatch.setattr(EmbeddedProvider, "down", lambda _, name: started.pop(name) is cluster)
    bad = chart("1.0.0", "{apiVersion: v1, kind: ConfigMap, metadata: {name: Bad_}}\n---\n")
    for options, rule in ((["--install"], "install"), (["--from", str(chart("2.0.0"))], "upgrade")):
        done = CliRunner().invoke(cli, ["check", str(bad), *options, "-o", "json"])
        told = {each["rule"]: each["sentence"] for each in json.loads(done.stdout)["findings"]}
        assert (told[rule].startswith(f"the {rule} "), "Bad_" in told[rule], started) == (True, True, {})
    done = CliRunner().invoke(cli, ["check", str(bad), "--from", "oci://127.0.0.1:9/charts/shop:1.0.0"])
    assert str(done.exception).startswith("oci://127.0.0.1:9/charts/shop:1.0.0 cannot be pulled: ")


@contextmanager
def finalized_after_the_next_write(cluster: Cluster, definition: str) -> Iterator[None]:
    """Let a definition that is deleted go once something is written to it again."""
    path, over = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition}", threading.Event()

    def finalize() -> None:
        before = None
        while not over.wait(0.05):
            about = (cluster.api.find(path) or {"metadata": {}})["metadata"]
            if "deletionTimestamp" not in about:
                before = about.get("annotations")
            elif about["annotations"] != before:
                with suppress(ApiError):
                    cluster.api.patch(path, {"metadata": {"finalizers": None}})

    with ThreadPoolExecutor(1) as pool:
        finalizing = pool.submit(finalize)
        try:
            yield
        finally:
            over.set()
            finalizing.result()


@pytest.mark.whole
def test_a_definition_that_stays_after_its_deletion_is_written_to_again(
    verdict: Ask, chart: Chart, cluster: Cluster
) -> None:
    # An API server that has just learnt the kind may do so. It logs "storage is (re)initializing".
    held = KEPT.replace("helm.sh/resource-policy: keep}", 'a: b}, finalizers: ["example.com/held"]')
    with finalized_after_the_next_write(cluster, "kepts.example.com"):
        found = verdict(chart("1.0.0", held), chart("2.0.0", held, tag="2"))
    assert told(found)["Deployment/web"] == "restarts pods"


@pytest.mark.whole
@pytest.mark.parametrize(("after", "said"), [(1, "added"), (2, "removed")])
def test_an_object_that_somebody_deletes_meanwhile_is_told_as_it_is_found(
    after: int, said: str, verdict: Ask, chart: Chart, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    install, made = Releases.install, []

    def and_delete(self: Releases, *arguments: Any, **options: Any) -> Release:
        made.append(install(self, *arguments, **options))
        if len(made) == after:
            cluster.api.delete(f"/api/v1/namespaces/{made[-1].namespace}/configmaps/settings")
        return made[-1]

    monkeypatch.setattr(Releases, "install", and_delete)
    assert told(verdict(chart("1.0.0"), chart("1.0.1"))) == {"ConfigMap/settings": said}


@pytest.mark.whole
def test_an_earlier_version_that_is_refused_is_told_and_is_no_fault(verdict: Ask, chart: Chart) -> None:
    found = verdict(chart("1.0.0", '{{ fail "size: no" }}'), chart("2.0.0"))
    assert "not tried, because the earlier version is refused: size: no" in str(found)
    assert list(found.findings()) == []


@pytest.mark.whole
def test_a_revision_of_the_repository_is_an_earlier_version(
    cluster: Cluster, chart: Chart, tmp_path: Path
) -> None:
    home = tmp_path / "repository" / "charts" / "shop"
    chart("1.0.0", home=home)
    git = ["git", "-C", str(home), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "a"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    chart("2.0.0", home=home, claim="disk")
    known = yaml.safe_load(cluster.kubeconfig.read_text())
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(known | {"current-context": "nowhere"}))
    context = known["current-context"]
    arguments = [
        "check",
        str(home),
        "--from",
        "git:v1",
        "--kubeconfig",
        str(kubeconfig),
        "--context",
        context,
    ]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 1
    assert "StatefulSet/store: the upgrade from git:v1 with the defaults is refused" in done.stdout
    [upgrade] = json.loads(CliRunner().invoke(cli, [*arguments, "-o", "json"]).stdout)["upgrades"]
    assert {"object": "Service/web", "verdict": "unchanged"} in upgrade["objects"]
    told = CliRunner().invoke(cli, [*arguments, "-o", "markdown"]).stdout
    title = f"<details><summary>{home}: upgrade from git:v1 with the defaults</summary>"
    assert told.count(title) == 1
    assert "# StatefulSet/store" in told
    assert "+        name: disk" in told or "+      name: disk" in told
    done = CliRunner().invoke(cli, ["check", str(home), "--from", "git:v7"])
    assert "git archive in " in str(done.exception)
