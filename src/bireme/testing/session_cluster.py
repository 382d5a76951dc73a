"""The cluster of a pytest session: one for each process, or one that all workers of pytest-xdist share."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bireme.clusters.base import Cluster
from bireme.clusters.existing import existing
from bireme.clusters.nodes import parse_nodes
from bireme.clusters.owner import owned, remove_orphans
from bireme.clusters.registry import provider
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.plan.instances import Instance, load_instances
from bireme.tools import Toolbox

_SHARED = "bireme_cluster"


def cluster_type(config: pytest.Config) -> str:
    """The --cluster-type of pytest-helm-charts, by default embedded."""
    return config.getoption("cluster_type") or os.environ.get("ATS_CLUSTER_TYPE") or "embedded"


@contextlib.contextmanager
def shown_progress(config: pytest.Config) -> Iterator[Console]:
    """Show at once what is printed in the block, also when it is piped; pytest would keep it back."""
    capture = config.pluginmanager.getplugin("capturemanager")
    reporter = config.pluginmanager.getplugin("terminalreporter")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        if reporter:
            reporter.ensure_newline()
        yield Console(stderr=True, force_terminal=False)


@contextlib.contextmanager
def session_cluster(
    config: pytest.Config, paths: Paths, toolbox: Toolbox, instances: Mapping[str, Instance]
) -> Iterator[Cluster]:
    """The cluster that the options ask for; one that is made here is removed at the end of the block.

    ``--cluster-version oldest`` stands for the oldest Kubernetes that hack/tools pins.
    """
    wanted = cluster_type(config)
    if wanted == "existing":
        given = config.getoption("kubeconfig")
        yield existing(Path(given) if given else None)
        return
    shared = getattr(config, "workerinput", {}).get(_SHARED)
    if shared:
        yield _known(config, provider(wanted, paths, toolbox).get(shared))
        return
    real = config.getoption("bireme_nodes")
    nodes = parse_nodes(real or config.getini("bireme_nodes"), instances)
    version = config.getoption("cluster_version") or os.environ.get("ATS_CLUSTER_VERSION")
    if version == "oldest":
        version = min(toolbox.versions("kube-apiserver"), key=lambda each: [int(n) for n in each.split(".")])
    options: dict[str, Any] = {"kubernetes": version} if version else {}
    if wanted == "kind" and not real:
        nodes, options["fake"] = {}, nodes
    name = f"pytest-{uuid.uuid4().hex[:8]}"
    remove_orphans(paths, toolbox)
    with owned(paths, wanted, name):
        with shown_progress(config) as console:
            clusters = provider(wanted, paths, toolbox, console)
            made = clusters.up(name, nodes, **options)
        try:
            yield _known(config, made)
        finally:
            clusters.down(name)


def _known(config: pytest.Config, cluster: Cluster) -> Cluster:
    """The cluster, whose kubeconfig pytest-helm-charts reads from the options."""
    config.option.kubeconfig = str(cluster.kubeconfig)
    return cluster


class SharedCluster:
    """Makes one cluster before pytest-xdist starts its workers, and removes it after they have ended.

    A plugin of the process that controls the workers, for --bireme-share-cluster.
    """

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._name = ""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Runs before pytest-xdist's own, which starts the workers."""
        paths = Paths.discover(start=session.config.rootpath)
        toolbox = Toolbox(paths, Console(stderr=True))
        cluster = session_cluster(session.config, paths, toolbox, load_instances(paths))
        try:
            self._name = self._open.enter_context(cluster).name
        except BiremeError as error:
            raise pytest.UsageError(str(error)) from error

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker which cluster to use."""
        node.workerinput[_SHARED] = self._name

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Runs after pytest-xdist's own, which ends the workers."""
        self._open.close()


def shares_cluster(config: pytest.Config) -> bool:
    """Whether this process controls workers that share one cluster."""
    starts_workers = bool(getattr(config.option, "tx", None)) and not hasattr(config, "workerinput")
    return starts_workers and bool(config.getoption("bireme_share_cluster"))
