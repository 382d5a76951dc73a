"""What Helm is called with, and how its answers are read. The embedded tier makes real releases."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bireme.core.errors import BiremeError
from bireme.live.release import Releases

MakeHelm = Callable[..., Releases]

DEPLOYED = {
    "name": "web",
    "namespace": "team",
    "version": 1,
    "info": {"status": "deployed", "last_deployed": "2026-01-01T00:00:00Z", "notes": "It runs.\n"},
    "manifest": "",
}


@dataclass(frozen=True)
class Somewhere:
    """A cluster that is never connected to."""

    kubeconfig: Path
    name: str = "somewhere"
    provider: str = "existing"
    context: str | None = "blue"
    nodes: dict[str, int] = field(default_factory=dict)
    api: Any = None


@dataclass(frozen=True)
class OneHelm:
    """A toolbox with one tool in it."""

    helm: Path

    def path(self, name: str, version: str | None = None) -> Path:
        return self.helm


@pytest.fixture
def make_helm(tmp_path: Path) -> MakeHelm:
    """Releases through a stand-in for Helm, which records its arguments and prints a given answer."""

    def make(answer: object = None, error: str = "", listed: object = None) -> Releases:
        helm = tmp_path / "helm of the test"
        helm.write_text(
            textwrap.dedent(f"""\
            #!/bin/sh
            if [ "$1" = version ]; then printf v4.3.1; exit; fi
            [ "$1" = list ] && [ -s '{tmp_path}/listed' ] && cat '{tmp_path}/listed' && exit
            printf '%s\\n' "$@" > '{tmp_path}/arguments'
            [ "$1" = upgrade ] && cat > '{tmp_path}/values'
            cat '{tmp_path}/answer'
            cat '{tmp_path}/error' >&2
            [ ! -s '{tmp_path}/error' ]
            """)
        )
        helm.chmod(0o755)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        (tmp_path / "answer").write_text(text)
        (tmp_path / "error").write_text(error)
        (tmp_path / "listed").write_text(json.dumps(listed) if listed is not None else "")
        return Releases(Somewhere(tmp_path / "kubeconfig"), OneHelm(helm))  # type: ignore[arg-type]

    return make


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    chart = tmp_path / "web"
    chart.mkdir()
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: web\nversion: 0.1.0\n")
    return chart


def arguments(tmp_path: Path) -> list[str]:
    return (tmp_path / "arguments").read_text().splitlines()


def test_an_install_does_not_wait_and_gives_its_timeout_a_unit(
    make_helm: MakeHelm, chart: Path, tmp_path: Path
) -> None:
    notes = make_helm(DEPLOYED).install(chart, "web", "team", {}, timeout=90).notes
    given = arguments(tmp_path)
    assert notes == "It runs."
    assert given[:3] == ["upgrade", "web", str(chart)]
    assert given[given.index("--timeout") + 1] == "90s"
    assert given[given.index("--kubeconfig") + 1] == str(tmp_path / "kubeconfig")
    assert given[given.index("--kube-context") + 1] == "blue"
    assert not {"--wait", "--wait-for-jobs", "--create-namespace", "--reuse-values"} & set(given)


def test_values_reach_helm_as_they_are(make_helm: MakeHelm, chart: Path, tmp_path: Path) -> None:
    values = {
        "args": ["--a", "b c"],
        "extra": None,
        "nested": {"n": 1.5, "text": "1.10"},
        "rocket": "\\ud83d 🚀",
    }
    make_helm(DEPLOYED).install(chart, "web", "team", values)
    text = (tmp_path / "values").read_text()
    assert json.loads(text) == values
    # Helm's reader takes no escaped pair of surrogates.
    assert "🚀" in text


@pytest.mark.parametrize(
    ("stderr", "sentence"),
    [
        (
            "Error: execution error at (web/templates/validate.yaml:3:4): workers: 0 is too few; set more",
            "^workers: 0 is too few; set more$",
        ),
        ('Error: create: failed to create: namespaces "team" not found', "kubectl create namespace team"),
        (
            "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress",
            "helm rollback web or bireme uninstall web clears the way",
        ),
        (
            'Error: Apply failed with 1 conflict: conflict with "kubectl-patch": .spec.parallelism',
            '"kubectl-patch": .spec.parallelism: somebody else has changed .* --force-conflicts',
        ),
    ],
)
def test_an_error_of_helm_is_the_charts_sentence_or_advice(
    make_helm: MakeHelm, chart: Path, stderr: str, sentence: str
) -> None:
    with pytest.raises(BiremeError, match=sentence):
        make_helm(error=stderr).install(chart, "web", "team", {})


def test_a_missing_release_has_no_revisions_and_can_be_uninstalled(
    make_helm: MakeHelm,
) -> None:
    helm = make_helm(error="Error: release: not found")
    assert helm.revisions("web", "team") == ()
    assert helm.current("web", "team") is None
    assert helm.uninstall("web", "team") is False


def test_the_objects_of_a_missing_release_are_an_error_with_advice(make_helm: MakeHelm) -> None:
    with pytest.raises(BiremeError, match="no release web in namespace team: bireme list shows the releases"):
        _ = make_helm(error="Error: release: not found").read("web", "team").manifests


@pytest.mark.parametrize(
    ("release", "namespace", "advice"),
    [
        ("web", "default", "there is no release web in namespace default: it is in namespace team, so add "),
        ("wbe", "team", "there is no release wbe in namespace team: did you mean web?"),
    ],
)
def test_a_release_that_is_elsewhere_or_misspelt_is_named(
    make_helm: MakeHelm, release: str, namespace: str, advice: str
) -> None:
    listed = {"name": "web", "namespace": "team", "revision": "1", "status": "deployed", "chart": "web-1"}
    helm = make_helm(error="Error: release: not found", listed=[listed | {"updated": "2026-01-01"}])
    with pytest.raises(BiremeError, match=advice):
        _ = helm.read(release, namespace).manifests
    with pytest.raises(BiremeError, match=advice):
        _ = helm.read(release, namespace).revision


def test_the_current_revision_is_the_highest(make_helm: MakeHelm) -> None:
    history = [
        {"revision": number, "status": status, "chart": "web-0.1.0", "updated": "2026-01-01T00:00:00Z"}
        for number, status in [(9, "superseded"), (10, "deployed")]
    ]
    current = make_helm(history).current("web", "team")
    assert current is not None
    assert (current.number, current.status, current.chart) == (10, "deployed", "web-0.1.0")


def test_the_objects_of_a_new_release_are_those_that_the_install_printed(
    make_helm: MakeHelm, chart: Path, tmp_path: Path
) -> None:
    text = "---\nkind: ConfigMap\nmetadata: {name: a}\n"
    made = make_helm(DEPLOYED | {"manifest": text}).install(chart, "web", "team", {})
    (tmp_path / "arguments").unlink()
    assert [manifest.identity for manifest in made.manifests] == ["ConfigMap/a"]
    assert not (tmp_path / "arguments").exists()
