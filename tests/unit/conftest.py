"""What the unit tests share: the project's paths, its pinned tools, and small charts made on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.plan.instances import Instance, load_instances
from bireme.tools import Toolbox

MakeChart = Callable[..., Path]
BiremePlan = Callable[..., str]


@pytest.fixture(scope="session")
def paths() -> Paths:
    return Paths.discover(start=Path(__file__))


@pytest.fixture(scope="session")
def toolbox(paths: Paths) -> Toolbox:
    return Toolbox(paths)


@pytest.fixture(scope="session")
def instances(paths: Paths) -> Mapping[str, Instance]:
    return load_instances(paths)


@pytest.fixture
def own_paths(paths: Paths, tmp_path: Path) -> Paths:
    """The project with a cache of the test's own."""
    return Paths(paths.root, tmp_path / "cache", tmp_path / "state")


@pytest.fixture
def renderer(toolbox: Toolbox, own_paths: Paths) -> Renderer:
    return Renderer(toolbox, own_paths)


@pytest.fixture
def make_chart(tmp_path: Path) -> MakeChart:
    """Write a chart from its parts: ``make_chart("web", templates={"a.yaml": …}, values={…})``."""

    def make(
        name: str,
        values: Mapping[str, Any] | str | None = None,
        templates: Mapping[str, str] | None = None,
        dependencies: list[Mapping[str, Any]] | None = None,
        schema: Mapping[str, Any] | None = None,
        within: Path | None = None,
    ) -> Path:
        chart = (within / "charts" if within else tmp_path) / name
        (chart / "templates").mkdir(parents=True)
        about = {"apiVersion": "v2", "name": name, "version": "0.1.0", "dependencies": dependencies or []}
        (chart / "Chart.yaml").write_text(json.dumps(about))
        text = values if isinstance(values, str) else json.dumps(values or {})
        (chart / "values.yaml").write_text(text)
        for file, template in (templates or {}).items():
            (chart / "templates" / file).write_text(template)
        if schema is not None:
            (chart / "values.schema.json").write_text(json.dumps(schema))
        return chart

    return make


@pytest.fixture
def bireme_plan(make_chart: MakeChart) -> BiremePlan:
    """Run ``bireme plan`` on a chart of one template: ``bireme_plan(text, "-o", "json")``; what it prints."""

    def run(template: str, *options: str, fails: bool = False) -> str:
        chart = make_chart("foreign", templates={"objects.yaml": template})
        done = CliRunner().invoke(cli, ["plan", str(chart), "run", *options])
        assert (done.exit_code != 0) == fails, done.output
        return str(done.exception) if fails else done.stdout

    return run
