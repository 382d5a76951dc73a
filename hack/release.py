"""Release the charts: `release.py check`, `release.py propose`, or `release.py cut`.

hack/releases.toml has the commit of each release, from which git reads its charts again. A release has one
version, that of the harness; a chart that changed since takes it, and one that did not keeps its own.

`check` exits with 1 and names each chart that changed and kept its version. `propose` raises the minor
version when the schema of a chart's values changed, else the patch. A major one is raised by hand. `cut`
closes CHANGELOG.md's section, commits, tags, and adds the commit to hack/releases.toml.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from package import CHANGES_ANNOTATION, RUNTIME_IN_CHART, application_charts, contents, pack_chart

from bireme.core.errors import BiremeError, run
from bireme.core.paths import Paths
from bireme.tools import Toolbox

RELEASES = Path("hack/releases.toml")
_HARNESS = ("pyproject.toml", "src/bireme/__init__.py")
_RUNTIME = (
    "runtime/pyproject.toml",
    "runtime/src/bireme_runtime/__init__.py",
    "runtime/src/bireme_runtime.dist-info/METADATA",
)
_HEADING = "## [Unreleased]\n"

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Packed:
    """A chart as `make package` packs it: ``files`` by their names inside the chart's folder.

    Of each Chart.yaml they have the fields, without versions and the list of changes.
    """

    name: str
    version: Version
    files: Mapping[str, Any]

    @classmethod
    def read(cls, toolbox: Toolbox, chart: Path) -> Packed:
        """Pack the chart in the folder ``chart``."""
        with tempfile.TemporaryDirectory() as scratch:
            packed = contents(pack_chart(toolbox, chart, Path(scratch), 0))
        about = yaml.safe_load(packed[f"{chart.name}/Chart.yaml"])
        files = {
            name.partition("/")[2]: _without_versions(content) if name.endswith("Chart.yaml") else content
            for name, content in packed.items()
        }
        return cls(about["name"], version_of(about["version"]), files)

    @property
    def runtime(self) -> Mapping[str, Any]:
        """The files of the runtime that the chart carries."""
        return {name: each for name, each in self.files.items() if name.startswith(RUNTIME_IN_CHART)}


def _without_versions(description: bytes) -> dict[str, Any]:
    about: dict[str, Any] = yaml.safe_load(description)
    about.pop("version")
    about["dependencies"] = [each | {"version": ""} for each in about.get("dependencies", [])]
    about.get("annotations", {}).pop(CHANGES_ANNOTATION, None)
    return about


def version_of(text: str) -> Version:
    """The three numbers of a semantic version. Raises BiremeError for anything else."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", text)
    if not found:
        raise BiremeError(f"{text!r} is not a version: it takes three numbers, such as 0.2.0")
    return int(found[1]), int(found[2]), int(found[3])


def dotted(version: Version) -> str:
    """A version as text."""
    return ".".join(map(str, version))


def next_version(current: Version, old: Packed, new: Packed) -> Version:
    """The version that follows ``current`` for what changed from ``old`` to ``new``."""
    major, minor, patch = current
    before, after = (each.files.get("values.schema.json") for each in (old, new))
    return (major, minor, patch + 1) if before == after else (major, minor + 1, 0)


class NoHistory(BiremeError):
    """The clone does not have the commit of the last release, and cannot fetch it."""


def read_release(paths: Paths, folder: Path) -> Paths:
    """Write the project as it was last released into the empty ``folder``.

    A shallow clone fetches the rest of its history. Raises BiremeError when it cannot.
    """
    releases = tomllib.loads((paths.root / RELEASES).read_text(encoding="utf-8"))
    last = max(releases, key=version_of)
    try:
        if _git(paths.root, "rev-parse", "--is-shallow-repository").strip() == b"true":
            _git(paths.root, "fetch", "--quiet", "--unshallow")
        tree = _git(paths.root, "archive", releases[last])
    except BiremeError as error:
        raise NoHistory(
            f"{RELEASES} has {last}, and this clone cannot read it ({error}): git fetch --unshallow"
        ) from error
    with tarfile.open(fileobj=io.BytesIO(tree)) as files:
        files.extractall(folder, filter="data")
    return replace(paths, root=folder)


@dataclass(frozen=True)
class Tree:
    """The charts of the project and, where there is one, their last release."""

    root: Path
    harness: Version
    pairs: tuple[tuple[Packed | None, Packed], ...]

    @classmethod
    def read(cls, paths: Paths) -> Tree:
        """Pack the charts as they are and as they were last released."""
        toolbox = Toolbox(paths)
        with tempfile.TemporaryDirectory() as folder:
            released = application_charts(read_release(paths, Path(folder)))
            last = {chart.name: Packed.read(toolbox, chart) for chart in released}
        now = [Packed.read(toolbox, chart) for chart in application_charts(paths)]
        project = tomllib.loads((paths.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        pairs = tuple((last.get(each.name), each) for each in now)
        return cls(paths.root, version_of(project["version"]), pairs)

    @property
    def changed(self) -> tuple[tuple[Packed, Packed], ...]:
        """The released charts that differ now, as they were and as they are."""
        return tuple((old, new) for old, new in self.pairs if old and new.files != old.files)

    @property
    def runtime_changed(self) -> bool:
        """Whether the runtime that the charts carry differs from what was released.

        A new version of it is a change of every chart with it, so it is not raised without need.
        """
        return any(old.runtime != new.runtime for old, new in self.changed)

    def findings(self) -> list[str]:
        """What keeps the charts from being released, a sentence each."""
        return [
            f"charts/{new.name} differs from its release {dotted(old.version)}, and its version is "
            f"{dotted(new.version)}: hack/release propose raises it"
            for old, new in self.changed
            if new.version <= old.version
        ]

    def proposed(self) -> Version:
        """The version of the next release."""
        return max([self.harness, *(next_version(old.version, old, new) for old, new in self.changed)])


def raise_versions(tree: Tree) -> Version:
    """Write the next version to the harness, the charts that changed and those that are new."""
    version = dotted(tree.proposed())
    for name in (*_HARNESS, *(_RUNTIME if tree.runtime_changed else ())):
        _rewrite(tree.root / name, r'^(__version__|version) = ".*"$', rf'\1 = "{version}"')
        if name.endswith("METADATA"):
            _rewrite(tree.root / name, r"^Version: .*$", f"Version: {version}")
    raised = {new.name for old, new in tree.pairs if not old or new.files != old.files}
    for name in raised:
        _rewrite(tree.root / f"charts/{name}/Chart.yaml", r"^version: .*$", f"version: {version}")
    for file in sorted(tree.root.glob("charts/*/Chart.yaml")):
        for name in raised:
            _rewrite(file, rf"^(  - name: {name}\n    version: ).*$", rf"\g<1>{version}")
    for file in sorted(tree.root.glob("docs/gitops*.yaml")):
        if re.search(rf"(/|chart: )({'|'.join(raised)})$", file.read_text("utf-8"), re.MULTILINE):
            _rewrite(file, r"^( +(tag|targetRevision): ).*$", rf"\g<1>{version}")
    return tree.proposed()


def _rewrite(file: Path, pattern: str, replacement: str) -> None:
    text = file.read_text(encoding="utf-8")
    file.write_text(re.sub(pattern, replacement, text, flags=re.MULTILINE), encoding="utf-8")


def close_section(changelog: str, version: Version, date: str) -> str:
    """CHANGELOG.md with what was unreleased under ``version``. Raises BiremeError when there is nothing."""
    head, heading, rest = changelog.partition(_HEADING)
    if not heading or not rest.partition("\n## [")[0].strip():
        raise BiremeError("CHANGELOG.md has nothing under Unreleased: say there what users notice")
    return f"{head}{_HEADING}\n## [{dotted(version)}] - {date}\n{rest}"


def cut(tree: Tree, date: str) -> str:
    """Close the changelog, commit, tag, and add the commit to the table of releases; returns the tag.

    Raises BiremeError, and changes nothing, when `check` finds something or the clone has other changes.
    """
    root, version = tree.root, dotted(tree.harness)
    findings = tree.findings()
    if _git(root, "status", "--porcelain"):
        findings.append("the clone has changes that are not committed: commit them first")
    if findings:
        raise BiremeError("\n".join(findings))
    changelog = root / "CHANGELOG.md"
    closed = close_section(changelog.read_text(encoding="utf-8"), tree.harness, date)
    changelog.write_text(closed, encoding="utf-8")
    body = "These are the charts as they are published."
    _git(root, "commit", "--quiet", "-m", f"Release {version}", "-m", body, "CHANGELOG.md")
    _git(root, "tag", "-a", f"v{version}", "-m", f"Bireme {version}")
    with (root / RELEASES).open("a", encoding="utf-8") as table:
        table.write(f'"{version}" = "{_git(root, "rev-parse", "HEAD").decode().strip()}"\n')
    body = "The next changes of the charts are compared with this release."
    _git(root, "commit", "--quiet", "-m", f"{RELEASES} has {version}", "-m", body, str(RELEASES))
    return f"v{version}"


def _git(root: Path, *words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, check=False)
    if done.returncode:
        raise BiremeError(f"git {words[0]} fails: {done.stderr.decode().strip()}")
    return done.stdout


def main() -> None:
    """Run the command that the arguments name."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("command", choices=["check", "propose", "cut"])
    command = options.parse_args().command
    paths = Paths.discover()
    tree = Tree.read(paths)
    if command == "check":
        if findings := tree.findings():
            raise BiremeError("\n".join(findings))
    elif command == "propose":
        print(f"the next release is {dotted(raise_versions(tree))}")
    else:
        tag = cut(tree, f"{datetime.now(UTC):%Y-%m-%d}")
        print(f"{tag} is tagged here: git push --follow-tags publishes it, make package there packs it")


if __name__ == "__main__":
    run(main)
