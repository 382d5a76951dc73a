"""The pytest plugin: fixtures that render, plan, install and observe charts.

It works beside pytest-helm-charts and takes its options as they are: ``--cluster-type embedded``
(the default) starts a control plane of its own before ``kube_cluster`` asks for one, ``--cluster-type
existing`` uses ``--kubeconfig``. Namespaces come from pytest-helm-charts' own fixtures.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bireme.clusters.base import Cluster
from bireme.clusters.waiting import until
from bireme.core.errors import BiremeError
from bireme.core.manifests import Fields
from bireme.core.paths import Paths
from bireme.helm import Render, Renderer, RenderRequest
from bireme.live import observe
from bireme.live.deploy import Deployer
from bireme.live.observe import Difference
from bireme.live.owners import Owners, paths_of
from bireme.live.pods import ObservedPod
from bireme.live.release import Releases
from bireme.plan.changes import Changes
from bireme.plan.instances import Instance, load_instances
from bireme.plan.topology import Plan, expand
from bireme.testing import charts
from bireme.testing.chart_coverage import ChartCoverage, NotingRenderer
from bireme.testing.charts import Chart, RequestFor, Snapshot
from bireme.testing.session_cluster import SharedCluster, cluster_type, session_cluster, shares_cluster
from bireme.tools import Toolbox

_COVERAGE = "bireme-chart-coverage"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options beside those of pytest-helm-charts."""
    parser.addini(
        "bireme_nodes", "nodes of the test cluster by type, e.g. p4d.24xlarge=3", default="p4d.24xlarge=3"
    )
    meaning = "overrides the ini option bireme_nodes; kind makes containers of these, else fake nodes"
    group = parser.getgroup("bireme")
    group.addoption("--bireme-nodes", help=meaning)
    meaning = "with -n: all workers use one cluster, and their tests must not get in each other's way"
    group.addoption("--bireme-share-cluster", action="store_true", help=meaning)
    group.addoption("--update", action="store_true", help="write the snapshots that tests check")
    group.addoption("--chart-cov", action="store_true", help="tell what tests run of templates of charts")
    meaning = "with --chart-cov: also write FILE.html in colours, any other as LCOV's tracefile"
    group.addoption("--chart-cov-report", type=Path, metavar="FILE", help=meaning)
    meaning = "with --chart-cov: fail where less percent of the branches of a chart ran"
    group.addoption("--chart-cov-fail-under", type=float, default=0, metavar="N", help=meaning)


def pytest_configure(config: pytest.Config) -> None:
    """The cluster that workers share, and what tests run of charts."""
    if shares_cluster(config):
        config.pluginmanager.register(SharedCluster(), "bireme-shared-cluster")
    if config.getoption("chart_cov"):
        options = [config.getoption(f"chart_cov_{name}") for name in ("fail_under", "report")]
        config.pluginmanager.register(ChartCoverage(*options), _COVERAGE)


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
def renderer(toolbox: Toolbox, bireme_paths: Paths, pytestconfig: pytest.Config) -> Renderer:
    """Charts rendered by the pinned Helm, once per content."""
    coverage = pytestconfig.pluginmanager.get_plugin(_COVERAGE)
    return NotingRenderer(toolbox, bireme_paths, coverage) if coverage else Renderer(toolbox, bireme_paths)


@pytest.fixture
def chart(request: pytest.FixtureRequest, chart_path: str, renderer: Renderer) -> Chart:
    """The chart in whose folder the test is, or that of --chart-path: ``chart.render({"replicas": 3})``."""
    for folder in [Path(chart_path)] if chart_path else request.path.parents:
        if (folder / "Chart.yaml").is_file():
            return Chart(folder, renderer)
    raise BiremeError(f"{chart_path or request.path} is in no chart: name one with --chart-path")


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Snapshot:
    """The objects that the test expects: ``snapshot.check(chart.render())``. --update writes them."""
    name = re.sub(r"[^\w.-]+", "-", request.node.name)
    file = request.path.parent / "snapshots" / request.path.stem / f"{name}.yaml"
    return Snapshot(file, request.config.getoption("update"))


@pytest.fixture(scope="session")
def request_for(bireme_paths: Paths, pytestconfig: pytest.Config) -> RequestFor:
    """Makes RenderRequests from chart, instance, workload, files, values and sets."""
    return partial(charts.request_for, bireme_paths, pytestconfig.rootpath)


@pytest.fixture(scope="session")
def render(renderer: Renderer, request_for: RequestFor) -> Callable[..., Render]:
    """``render("torch-elastic", instance="p4d.24xlarge", sets=["workers=3"])``: the frozen manifests."""
    return lambda chart, **options: renderer.render(request_for(chart, **options))


@pytest.fixture(scope="session")
def plan(render: Callable[..., Render], instances: Mapping[str, Instance]) -> Callable[..., Plan]:
    """Like ``render``, but the planned topology: workloads, pods, ranks, resources, nodes needed."""

    def _plan(chart: str | Path, **options: Any) -> Plan:
        rendered = render(chart, **options)
        return expand(rendered.request.release, rendered.request.namespace, rendered.manifests, instances)

    return _plan


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use pytest-helm-charts' cluster start ours first, which writes the kubeconfig they read."""
    for item in items:
        names = getattr(item, "fixturenames", [])
        if "kube_config" in names and cluster_type(item.config) != "existing":
            names.insert(0, "bireme_cluster")


@pytest.fixture(scope="session")
def bireme_cluster(
    pytestconfig: pytest.Config, bireme_paths: Paths, toolbox: Toolbox, instances: Mapping[str, Instance]
) -> Iterator[Cluster]:
    """The cluster of --cluster-type: embedded (default) or kind, for the session only; or existing."""
    with session_cluster(pytestconfig, bireme_paths, toolbox, instances) as cluster:
        yield cluster


@dataclass
class InstalledRelease:
    """A release that a test installed. The fixture makes its namespace and removes it."""

    request_for: RequestFor
    toolbox: Toolbox
    renderer: Renderer
    instances: Mapping[str, Instance]
    cluster: Any

    def install(
        self,
        chart: str | Path,
        name: str,
        namespace: str,
        replace: bool = False,
        expect_differences: bool = False,
        timeout: float = 120,
        **options: Any,
    ) -> InstalledRelease:
        """Install or upgrade, and wait until it is as planned; differences fail unless they are expected."""
        self.chart, self.name, self.namespace = chart, name, namespace
        request = self._request(options)
        outcome = self._deployer(request.helm).install(request, timeout, replace)
        self.plan = outcome.plan
        if outcome.differences and not expect_differences:
            pytest.fail("\n".join(each.sentence for each in outcome.differences))
        return self

    def upgrade(self, values: Mapping[str, Any] | None = None, **options: Any) -> InstalledRelease:
        """Upgrade to other values: the same arguments as ``cluster.install`` takes."""
        return self.install(self.chart, self.name, self.namespace, values=values, **options)

    def changes(self, values: Mapping[str, Any] | None = None, **options: Any) -> Changes:
        """What an upgrade to these values will do."""
        request = self._request({**options, "values": values})
        return self._deployer(request.helm).changes(request)

    def uninstall(self) -> None:
        """Uninstall and wait until the pods are gone."""
        self._deployer("helm").uninstall(self.name, self.namespace)

    def exists(self) -> bool:
        """Whether Helm knows the release."""
        return Releases(self.cluster, self.toolbox).current(self.name, self.namespace) is not None

    def pods(self) -> tuple[ObservedPod, ...]:
        """The live pods."""
        return observe.observe(self.cluster, self.plan)

    def differences(self) -> tuple[Difference, ...]:
        """How they differ from the plan, now."""
        return observe.check(self.cluster, self.plan).differences

    def wait(self, timeout: float = 120, until: str | None = None) -> tuple[Difference, ...]:
        """Wait until all is as planned or a difference of category ``until`` appears; the differences."""
        if until is None:
            return observe.wait(self.cluster, self.plan, timeout).differences
        self.until(lambda: until in {each.category for each in self.differences()}, timeout)
        return self.differences()

    def until(self, done: Callable[[], bool], timeout: float = 120) -> None:
        """Wait for ``done``; fail the test after ``timeout`` seconds."""
        try:
            until(done, timeout, "what the test waits for")
        except BiremeError as error:
            pytest.fail("; ".join([str(error), *(each.sentence for each in self.differences())]))

    def objects(self, plural: str) -> list[Fields]:
        """The live objects of the release by plural, e.g. ``pods`` or ``certificates.cert-manager.io``.

        They are those of its manifest and all that these have made, without hooks. Keys are attributes too.
        """
        api = self.cluster.api
        owners = Owners(api, self.plan)
        found = [paths_of(api, plural, each) for each in owners.namespaces]
        paths = dict.fromkeys((kind, path) for each in found for kind, path in each.items())
        items = ((kind, item) for kind, path in paths for item in api.items(path))
        return [Fields.of(item) for kind, item in items if owners.maker(kind, item)]

    def names(self, plural: str) -> list[str]:
        """The names of ``objects``."""
        return [item["metadata"]["name"] for item in self.objects(plural)]

    def delete_pod(self, name: str) -> None:
        """Delete a pod, as a drain does."""
        self.cluster.api.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def _request(self, options: Mapping[str, Any]) -> RenderRequest:
        return self.request_for(self.chart, release=self.name, namespace=self.namespace, **options)

    def _deployer(self, helm: str) -> Deployer:
        releases = Releases(self.cluster, self.toolbox, helm)
        return Deployer(self.cluster, releases, self.renderer, self.instances)


ReleaseFactory = Callable[..., InstalledRelease]


@dataclass(frozen=True)
class ClusterUnderTest(Cluster):
    """A cluster that a test installs charts on."""

    _release: ReleaseFactory

    def install(
        self, chart: Chart, values: Mapping[str, Any] | None = None, **options: Any
    ) -> InstalledRelease:
        """Install ``chart`` until the test ends, and wait until it is as planned.

        ``options`` are name, expect_differences, timeout, files, sets and helm.
        """
        return self._release(chart.path, values=values, **options)


@pytest.fixture(scope="module")
def test_namespace(random_namespace: Any, bireme_cluster: Cluster) -> Iterator[str]:
    """A namespace for the module alone, made and removed by pytest-helm-charts."""
    name: str = random_namespace.name
    yield name
    # Kubernetes looks again only after 8 to 15 s at a deleted namespace that still has some of these.
    api = bireme_cluster.api
    slow = [f"/api/v1/namespaces/{name}/{plural}" for plural in ("pods", "persistentvolumeclaims")]
    for path in slow:
        api.delete(path)
    with contextlib.suppress(BiremeError):
        until(lambda: not any(api.items(path) for path in slow), 30, "pods and claims to be gone")


@pytest.fixture(scope="session")
def new_release(
    bireme_cluster: Cluster,
    request_for: RequestFor,
    toolbox: Toolbox,
    renderer: Renderer,
    instances: Mapping[str, Instance],
) -> Callable[[], InstalledRelease]:
    """``new_release().install(chart, name, namespace)``: for fixtures that outlive a test."""
    return lambda: InstalledRelease(request_for, toolbox, renderer, instances, bireme_cluster)


@pytest.fixture
def release(new_release: Callable[[], InstalledRelease], test_namespace: str) -> Iterator[ReleaseFactory]:
    """``release("torch-elastic", instance="p4d.24xlarge", sets=["workers=3"])``: installed, as planned, and
    removed when the test ends. Takes what ``render`` takes, and name, expect_differences and timeout.
    """
    installed: list[InstalledRelease] = []

    def _release(chart: str | Path, name: str | None = None, **options: Any) -> InstalledRelease:
        one = new_release()
        installed.append(one)
        return one.install(chart, name or f"t{uuid.uuid4().hex[:6]}", test_namespace, **options)

    yield _release
    for one in installed:
        if one.exists():
            one.uninstall()


@pytest.fixture
def cluster(bireme_cluster: Cluster, release: ReleaseFactory) -> ClusterUnderTest:
    """The cluster of --cluster-type, by default embedded: ``cluster.install(chart, {"replicas": 3})``."""
    own = bireme_cluster
    return ClusterUnderTest(own.name, own.provider, own.kubeconfig, own.context, release)
