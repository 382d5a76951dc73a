"""What programs, notebooks and the commands share: charts, values, clusters and the jobs on them.

`bireme.Cluster` is the documented face (examples/notebook.ipynb). What only some methods need is imported in
them: a command waits for what it uses, not for all that there is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bireme.core.errors import BiremeError, refuse_name, suggestion
from bireme.core.paths import Paths
from bireme.helm import Charts, Renderer, RenderRequest, SetFlags, scripts
from bireme.helm import values as value_files
from bireme.tools import Toolbox

if TYPE_CHECKING:
    from bireme.clusters import base
    from bireme.live.deploy import Deployer
    from bireme.live.release import Releases
    from bireme.live.summary import ReleaseStatus
    from bireme.plan.instances import Instance
    from bireme.plan.topology import Plan

_NO_FLAGS = SetFlags()


@dataclass(frozen=True)
class Target:
    """Which cluster: by its name for `bireme up`, or by a kubeconfig and a context in it."""

    cluster: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None


class Workbench:
    """Charts, values, instance types and tools, made on first use. ``console`` shows progress."""

    def __init__(self, console: Console | None = None) -> None:
        self.err = console or Console(quiet=True)

    @cached_property
    def paths(self) -> Paths:
        return Paths.discover()

    @cached_property
    def toolbox(self) -> Toolbox:
        return Toolbox(self.paths, self.err)

    @cached_property
    def instances(self) -> Mapping[str, Instance]:
        from bireme.plan.instances import load_instances

        return load_instances(self.paths)

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.toolbox, self.paths)

    @cached_property
    def charts(self) -> Charts:
        return Charts(self.paths, self.toolbox)

    def provider(self, name: str) -> base.Provider:
        from bireme.clusters.registry import provider

        return provider(name, self.paths, self.toolbox, self.err)

    def releases(self, cluster: base.Cluster) -> Releases:
        from bireme.live.release import Releases

        return Releases(cluster, self.toolbox)

    def deployer(self, cluster: base.Cluster, quiet: bool = False) -> Deployer:
        from bireme.live.deploy import Deployer

        return Deployer(
            cluster, self.releases(cluster), self.renderer, self.instances, None if quiet else self.err
        )

    def planned(self, request: RenderRequest) -> Plan:
        """The plan of what ``request`` renders. Raises RenderError when the chart refuses it."""
        from bireme.plan.topology import expand

        manifests = self.renderer.render(request).manifests
        return expand(request.release, request.namespace, manifests, self.instances)

    def cluster(self, target: Target) -> base.Cluster:
        """The cluster that ``target`` names, else of $KUBECONFIG, of `bireme up`, or of ~/.kube/config."""
        from bireme.clusters.existing import existing
        from bireme.clusters.state import list_clusters

        if target.kubeconfig or target.context:
            return existing(target.kubeconfig, target.context or "")
        made = {info.name: info for info in list_clusters(self.paths)}
        given = os.environ.get("KUBECONFIG")
        # $KUBECONFIG may be that of a cluster of `bireme up`, of which more is known than of others.
        ours = [name for name, info in made.items() if not given or str(info.kubeconfig) == given]
        chosen = target.cluster or (ours[0] if len(ours) == 1 else None)
        if chosen is None and ours:
            raise BiremeError(f"there are several clusters ({', '.join(ours)}): choose one with --cluster")
        if chosen is None:
            return existing()
        if chosen not in made:
            raise BiremeError(f"there is no cluster {chosen}: start it with: bireme up --cluster {chosen}")
        return self.provider(made[chosen].provider).get(chosen)

    def kept_values(self, *kinds: str) -> dict[str, Path]:
        """The values files of the collection by name; ``kinds`` are instances and workloads."""
        files = (file for kind in kinds for file in (self.paths.values / kind).glob("*.yaml"))
        return {file.stem: file for file in files}

    def values_file(self, name: str) -> Path:
        """A values file: as it is called, or one of the collection by its name. What is there wins."""
        kept = self.kept_values("instances", "workloads")
        if Path(name).exists():
            return Path(name)
        if name not in kept and "/" not in name and not name.endswith((".yaml", ".yml")):
            raise BiremeError(
                f"-f {name} is neither a file nor an instance type or a workload: {suggestion(name, kept)}"
            )
        return kept.get(name, Path(name))

    def request(
        self,
        chart: str,
        release: str | None = None,
        files: Sequence[str] = (),
        values: Mapping[str, Any] | None = None,
        script: str = "",
        namespace: str = "default",
        settings: SetFlags = _NO_FLAGS,
        plain_http: bool = False,
    ) -> RenderRequest:
        """What to install: a chart by what `Charts.find` takes, with ``files``, ``values``, then a script.

        ``script`` is what `scripts.packed` takes. Raises BiremeError.
        """
        try:
            folder = self.charts.find(chart, plain_http)
        except BiremeError as error:
            # Helm's order.
            swapped = release in self.charts.names() if release else False
            hint = f"; the chart stands first: did you mean {release} {chart}?" if swapped else ""
            raise BiremeError(f"{error}{hint}") from error
        layers = value_files.load([self.values_file(name) for name in files])
        defaults = folder / "values.yaml"
        if script and "script" not in (value_files.read_file(defaults) if defaults.is_file() else {}):
            raise BiremeError(
                f"--script: {folder} has no value `script`: give it to a chart of a training job"
            )
        refuse_name("RELEASE", release or "r", 53)
        release = release or folder.resolve().name.lower()
        refuse_name(f"the folder {folder} names the release, or name one after it", release, 53)
        given = value_files.merge(layers, values or {})
        if script:
            given = scripts.applied(given, scripts.packed(script))
        return RenderRequest(folder, given, release, namespace, settings=settings)


class Cluster:
    """Jobs on one cluster: `bireme.Cluster("try").install("torch-elastic", files=["g5.xlarge"])`.

    ``name`` is that of a cluster of `bireme up`, ``kubeconfig`` and ``context`` are of another. Without any,
    it is the cluster that commands take. It is looked for when a method needs it. Methods raise BiremeError,
    whose text says what is wrong and what to do.
    """

    def __init__(
        self, name: str | None = None, kubeconfig: str | Path | None = None, context: str | None = None
    ) -> None:
        self._bench = Workbench()
        self._target = Target(name, Path(kubeconfig) if kubeconfig else None, context)

    @cached_property
    def _cluster(self) -> base.Cluster:
        return self._bench.cluster(self._target)

    @property
    def _deployer(self) -> Deployer:
        return self._bench.deployer(self._cluster, quiet=True)

    def plan(self, chart: str, release: str | None = None, **given: Any) -> Plan:
        """The pods, ranks and nodes that ``chart`` would have. No cluster is asked.

        ``files`` are paths, or names of instance types and workloads. ``values`` count more. ``script`` is a
        file, a folder or git+URL@REF, as for --script. ``namespace`` is default unless given.
        """
        return self._bench.planned(self._bench.request(chart, release, **given))

    def install(
        self,
        chart: str,
        release: str | None = None,
        *,
        timeout: float = 300,
        replace: bool = False,
        **given: Any,
    ) -> ReleaseStatus:
        """Install or upgrade what `plan` takes, and wait for at most ``timeout`` seconds.

        ``replace`` stops a run that cannot change in place, and trains on in the next run. The result has
        ``differences`` from the plan.
        """
        request = self._bench.request(chart, release, **given)
        return self._deployer.install(request, timeout, replace)

    def status(self, release: str, namespace: str = "default") -> ReleaseStatus:
        """The pods of a release beside its plan, now."""
        return self._deployer.status(release, namespace)

    def logs(
        self, release: str, namespace: str = "default", rank: int | None = None, follow: bool = False
    ) -> Iterator[str]:
        """The lines of one rank, without ``rank`` of the launcher or rank 0; also those to come."""
        from bireme.live import logs

        plan = self._deployer.planned(release, namespace)
        pod = logs.main_pod(self._cluster, plan, rank)
        pieces = logs.log(self._cluster, plan, pod, logs.Wanted(follow=follow))
        return (line.decode(errors="replace") for line in logs.lines(pieces))

    def uninstall(self, release: str, namespace: str = "default") -> None:
        """Remove a release, and wait until its pods are gone."""
        self._deployer.uninstall(release, namespace)
