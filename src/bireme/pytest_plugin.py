"""The pytest plugin: fixtures that render, plan, install and observe charts.

It works beside pytest-helm-charts and takes its options as they are: ``--cluster-type embedded`` (the default)
starts a control plane of its own before ``kube_cluster`` asks for one, ``--cluster-type existing`` uses
``--kube-config``. Namespaces come from pytest-helm-charts' own fixtures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bireme import values as value_files
from bireme.errors import BiremeError
from bireme.instances import Instance, load_instances
from bireme.paths import Paths
from bireme.render import Render, Renderer, RenderRequest
from bireme.tools import Toolbox
from bireme.topology import Plan, expand

MARKERS = {
    "embedded": "runs on a control plane without containers (the embedded tier)",
    "kind": "runs real containers and needs a container engine (the kind tier)",
    "torch": "runs real torch from the image's root file system",
    "slow": "takes more than half a minute, because Kubernetes' own timeouts do",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options beside those of pytest-helm-charts."""
    parser.addini("bireme_nodes", "nodes of the test cluster by type, e.g. p4d.24xlarge=3", default="p4d.24xlarge=3")
    parser.getgroup("bireme").addoption("--bireme-nodes", help="overrides the ini option bireme_nodes")


def pytest_configure(config: pytest.Config) -> None:
    """The markers of the tiers."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


@pytest.fixture(scope="session")
def bireme_paths(pytestconfig: pytest.Config) -> Paths:
    """The project's folders, found around pytest's root directory or around this package."""
    return Paths.discover(start=pytestconfig.rootpath)


@pytest.fixture(scope="session")
def toolbox(bireme_paths: Paths) -> Toolbox:
    """The pinned tools."""
    return Toolbox(bireme_paths, Console(stderr=True, quiet="PYTEST_XDIST_WORKER" in os.environ))


@pytest.fixture(scope="session")
def instances(bireme_paths: Paths) -> Mapping[str, Instance]:
    """The instance types of values/instances by name."""
    return load_instances(bireme_paths)


@pytest.fixture(scope="session")
def renderer(toolbox: Toolbox, bireme_paths: Paths) -> Renderer:
    """Charts rendered by the pinned Helm, once per content."""
    return Renderer(toolbox, bireme_paths)


@dataclass(frozen=True)
class Request:
    """What tests say about a render, and the RenderRequest that follows from it."""

    paths: Paths
    root: Path

    def __call__(
        self,
        chart: str | Path,
        *,
        instance: str | None = None,
        workload: str | None = None,
        files: Sequence[str | Path] = (),
        values: Mapping[str, Any] | None = None,
        sets: Sequence[str] = (),
        **options: Any,
    ) -> RenderRequest:
        """A request for ``chart``: a name in charts/, or a folder as seen from pytest's root directory.

        ``instance`` and ``workload`` are names in values/; ``files`` follow them, then ``values`` (a mapping)
        and ``sets`` (as for --set). ``options`` are those of RenderRequest: release, namespace, helm, …
        """
        layers = [self.paths.values / "instances" / f"{instance}.yaml"] if instance else []
        layers += [self.paths.values / "workloads" / f"{workload}.yaml"] if workload else []
        layers += [self.root / file for file in files]
        inline = [json.dumps(values)] if values else []
        merged = value_files.load(layers, sets=sets, set_jsons=inline)
        return RenderRequest(self.chart(chart), merged, **options)

    def chart(self, chart: str | Path) -> Path:
        """The folder of ``chart``."""
        known = self.paths.charts / chart
        return known if (known / "Chart.yaml").is_file() else self.root / chart


@pytest.fixture(scope="session")
def request_for(bireme_paths: Paths, pytestconfig: pytest.Config) -> Request:
    """Makes RenderRequests from chart, instance, workload, files, values and sets."""
    return Request(bireme_paths, pytestconfig.rootpath)


@pytest.fixture(scope="session")
def render(renderer: Renderer, request_for: Request) -> Callable[..., Render]:
    """``render("torch-elastic", instance="p4d.24xlarge", sets=["workers=3"])``: the frozen manifests."""

    def _render(chart: str | Path, **said: Any) -> Render:
        return renderer.render(request_for(chart, **said))

    return _render


@pytest.fixture(scope="session")
def plan(render: Callable[..., Render], instances: Mapping[str, Instance]) -> Callable[..., Plan]:
    """Like ``render``, but the planned topology: workloads, pods, ranks, resources, nodes needed."""

    def _plan(chart: str | Path, **said: Any) -> Plan:
        rendered = render(chart, **said)
        return expand(rendered.request.release, rendered.request.namespace, rendered.manifests, instances)

    return _plan
