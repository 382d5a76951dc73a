"""Charts under test: what they render to, and whether that is what a snapshot has."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from bireme.core.paths import Paths
from bireme.helm import Render, Renderer, RenderRequest, SetFlags, load
from bireme.helm.values import merge
from bireme.helm.yaml import block_text

RequestFor = Callable[..., RenderRequest]


@dataclass(frozen=True)
class Chart:
    """A chart under test."""

    path: Path
    _renderer: Renderer = field(repr=False)

    def render(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        files: Sequence[str] = (),
        sets: Sequence[str] = (),
        release: str = "release",
        namespace: str = "default",
        kube_version: str | None = None,
        helm: Literal["helm", "helm3"] = "helm",
    ) -> Render:
        """What it makes of its ``files``, ``values`` over them, and ``sets`` (as for --set) over both.

        Raises RenderError with the chart's own sentence where it refuses them.
        """
        merged = merge(load([self.path / file for file in files]), values or {})
        where = (release, namespace, kube_version)
        return self._renderer.render(
            RenderRequest(self.path, merged, *where, helm=helm, settings=SetFlags(sets))
        )


@dataclass(frozen=True)
class Snapshot:
    """The objects that one test expects, in a file beside it. ``updates``: pytest runs with --update."""

    file: Path
    updates: bool

    def check(self, rendered: Render) -> None:
        """Fail the test where the objects are not those of the file. With --update the file is written."""
        text = block_text(each.thaw() for each in rendered.manifests)
        if self.updates:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(text, "utf-8")
        before = self.file.read_text("utf-8") if self.file.is_file() else ""
        if lines := [*difflib.unified_diff(before.splitlines(), text.splitlines(), lineterm="")][2:]:
            advice = f"{self.file} differs. Is that meant? Then run pytest with --update"
            pytest.fail("\n".join([advice, *lines]), pytrace=False)


def request_for(
    paths: Paths,
    root: Path,
    chart: str | Path,
    *,
    instance: str | None = None,
    workload: str | None = None,
    files: Sequence[str | Path] = (),
    values: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    **options: Any,
) -> RenderRequest:
    """What tests name: a chart in charts/ of ``paths``, or a folder as seen from ``root``.

    ``instance`` and ``workload`` are names in values/. ``files`` follow them, then ``values`` (a mapping) and
    ``sets`` (as for --set). ``options`` are those of RenderRequest: release, namespace, helm, …
    """
    layers = [paths.values / "instances" / f"{instance}.yaml"] if instance else []
    layers += [paths.values / "workloads" / f"{workload}.yaml"] if workload else []
    merged = merge(load([*layers, *(root / file for file in files)]), values or {})
    known = paths.charts / chart
    folder = known if (known / "Chart.yaml").is_file() else root / chart
    return RenderRequest(folder, merged, settings=SetFlags(sets), **options)
