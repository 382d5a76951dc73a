"""`hack/release` tells which charts need a new version, raises versions, and reads releases from git."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import package
import pytest
import release
import yaml

from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.tools import Toolbox

RUNTIME = "runtime/src/bireme_runtime/__init__.py"
CARRIED = "charts/web/charts/bireme-runtime/files/runtime/bireme_runtime/__init__.py"
GITOPS = {
    "flux": "url: oci://a/{}\n  ref:\n    tag: {}\n",
    "argocd": "chart: {}\n    targetRevision: {}\n",
}
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n### Added to charts\n\n- `web`: a key.\n- `other`: no.\n\n"
    "### Fixed in charts\n\n- All: two\n  lines.\n\n### Added to commands\n\n- `bireme x`.\n"
)


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run(["git", *who, *words], cwd=root, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def project(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """A repository with the charts web and other, released as 0.1.0."""
    for name in ("NAME", "EMAIL"):
        for role in ("AUTHOR", "COMMITTER"):
            monkeypatch.setenv(f"GIT_{role}_{name}", "a@example.com")
    root = tmp_path / "project"
    for name in ("web", "other"):
        write(root, name, {"workers": {"type": "integer"}})
    (root / "charts/web/templates/map.yaml").write_text("kind: ConfigMap\n")
    (root / "src/bireme").mkdir(parents=True)
    for file in (RUNTIME, CARRIED):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text('__version__ = "0.1.0"\n')
    library = "apiVersion: v2\nname: bireme-runtime\ntype: library\nversion: 0.1.0\n"
    (root / "charts/web/charts/bireme-runtime/Chart.yaml").write_text(library)
    metadata = root / "runtime/src/bireme_runtime.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Version: 0.1.0\n")
    for file in ("pyproject.toml", "runtime/pyproject.toml"):
        (root / file).write_text('[project]\nversion = "0.1.0"\n')
    (root / "src/bireme/__init__.py").write_text('__version__ = "0.1.0"\n')
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet", str(root))
    shutil.copytree(paths.root / "hack/tools", root / "hack/tools")
    commit(root)
    (root / release.RELEASES).write_text(f'"0.1.0" = "{git(root, "rev-parse", "HEAD").strip()}"\n')
    commit(root)
    return Paths(root, paths.cache, tmp_path / "state")


def write(root: Path, name: str, properties: Mapping[str, Any], version: str = "0.1.0") -> None:
    """A chart that takes values of these properties."""
    folder = root / "charts" / name
    (folder / "templates").mkdir(parents=True, exist_ok=True)
    about = f"apiVersion: v2\nname: {name}\ntype: application\nversion: {version}\n"
    if name == "web":
        about += "dependencies:\n  - name: bireme-runtime\n    version: 0.1.0\n"
    (folder / "Chart.yaml").write_text(about)
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    (folder / "values.schema.json").write_text(json.dumps(schema))


def commit(root: Path) -> None:
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "All")


def test_charts_as_they_were_released_need_no_version(project: Paths) -> None:
    tree = release.Tree.read(project)
    assert tree.findings() == []
    assert tree.changed == ()


def test_a_chart_that_changed_and_kept_its_version_is_named(project: Paths) -> None:
    (project.root / "charts/web/templates/map.yaml").write_text("kind: Secret\n")
    (sentence,) = release.Tree.read(project).findings()
    assert sentence.startswith("charts/web differs from its release 0.1.0, and its version is 0.1.0")


@pytest.mark.parametrize(
    ("properties", "version"),
    [({"workers": {"type": "integer"}, "image": {"type": "string"}}, (1, 3, 0)), ({}, (1, 3, 0))],
)
def test_a_changed_schema_raises_the_minor_version(
    project: Paths, properties: Any, version: release.Version
) -> None:
    write(project.root, "web", properties)
    old, new = next(pair for pair in release.Tree.read(project).pairs if pair[1].name == "web")
    assert old is not None
    assert release.next_version((1, 2, 3), old, new) == version
    assert release.next_version((1, 2, 3), old, old) == (1, 2, 4)


def test_a_proposal_raises_the_harness_and_the_charts_that_changed(project: Paths) -> None:
    write(project.root, "web", {"workers": {"type": "integer"}, "image": {"type": "string"}})
    about = project.root / "charts/other/Chart.yaml"
    documents = {
        project.root / f"docs/gitops-{form}-{chart}.yaml": (chart, text, version)
        for chart, version in (("web", "0.2.0"), ("other", "0.1.0"))
        for form, text in GITOPS.items()
    }
    for file, (chart, text, _) in documents.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.format(chart, "0.1.0"))
    assert release.raise_versions(release.Tree.read(project)) == (0, 2, 0)
    assert "version: 0.2.0\n" in (project.root / "charts/web/Chart.yaml").read_text()
    assert "version: 0.1.0\n" in about.read_text()
    assert '__version__ = "0.2.0"\n' in (project.root / "src/bireme/__init__.py").read_text()
    for file, (chart, text, version) in documents.items():
        assert file.read_text() == text.format(chart, version)


def test_the_runtime_takes_the_version_only_when_it_changed(project: Paths) -> None:
    metadata = project.root / "runtime/src/bireme_runtime.dist-info/METADATA"
    for changed, version in (("charts/web/templates/map.yaml", "0.1.0"), (CARRIED, "0.1.1")):
        (project.root / changed).write_text("kind: Secret\n")
        release.raise_versions(release.Tree.read(project))
        assert (project.root / RUNTIME).read_text() == f'__version__ = "{version}"\n'
        assert metadata.read_text() == f"Version: {version}\n"


@pytest.mark.parametrize("document", ["gitops.yaml", "gitops-argocd.yaml"])
def test_the_documents_for_gitops_name_the_chart_that_make_package_writes(
    paths: Paths, document: str
) -> None:
    about = yaml.safe_load((paths.charts / "torch-elastic/Chart.yaml").read_text())
    text = (paths.root / "docs" / document).read_text()
    assert "torch-elastic\n" in text
    assert re.findall(r"^ +(?:tag|targetRevision): (.*)$", text, re.MULTILINE) == [about["version"]]


def test_a_cut_closes_the_changelog_and_tags_what_the_next_is_held_against(
    project: Paths, tmp_path: Path
) -> None:
    write(project.root, "web", {"image": {"type": "string"}})
    release.raise_versions(release.Tree.read(project))
    commit(project.root)
    assert release.cut(release.Tree.read(project), "2026-11-24") == "v0.2.0"
    assert git(project.root, "tag").split() == ["v0.2.0"]
    assert git(project.root, "status", "--porcelain") == ""
    changelog = (project.root / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-11-24\n\n### Added to charts\n\n- `web`: a key." in changelog
    write(project.root, "web", {"image": {"type": "string"}, "port": {}}, version="0.2.0")
    (sentence,) = release.Tree.read(project).findings()
    assert sentence.startswith("charts/web differs from its release 0.2.0, and its version is 0.2.0")


def test_a_shallow_clone_fetches_the_last_release_or_says_how_to_get_it(
    project: Paths, tmp_path: Path
) -> None:
    for name in ("shallow", "alone"):
        git(tmp_path, "clone", "--quiet", "--depth", "1", project.root.as_uri(), str(tmp_path / name))
    git(tmp_path / "alone", "remote", "remove", "origin")
    assert release.Tree.read(replace(project, root=tmp_path / "shallow")).findings() == []
    shallow = tmp_path / "alone"
    with pytest.raises(BiremeError, match=r"0\.1\.0, and this clone cannot read it .* git fetch --unshallow"):
        release.Tree.read(replace(project, root=shallow))


def test_nothing_is_cut_with_changes_that_are_not_committed(project: Paths) -> None:
    (project.root / "charts/web/templates/map.yaml").write_text("kind: Secret\n")
    with pytest.raises(BiremeError, match="commit them first"):
        release.cut(release.Tree.read(project), "2026-11-24")
    assert git(project.root, "tag") == ""


def test_nothing_is_cut_without_a_word_in_the_changelog() -> None:
    with pytest.raises(BiremeError, match="nothing under Unreleased"):
        release.close_section("# Changelog\n\n## [Unreleased]\n\n## [0.1.0]\n", (0, 2, 0), "2026-11-24")


def test_a_packed_chart_says_what_changed_in_it(project: Paths, tmp_path: Path) -> None:
    packed = package.pack_chart(Toolbox(project), project.charts / "web", tmp_path, 0)
    annotations = yaml.safe_load(package.chart_yaml(packed))["annotations"]
    assert yaml.safe_load(annotations["artifacthub.io/changes"]) == [
        {"kind": "added", "description": "`web`: a key."},
        {"kind": "fixed", "description": "All: two lines."},
    ]


def test_every_chart_of_the_project_has_a_version_for_what_changed(paths: Paths) -> None:
    try:
        tree = release.Tree.read(paths)
    except release.NoHistory as error:
        pytest.skip(str(error))
    assert tree.findings() == []
