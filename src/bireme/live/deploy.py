"""One release from values to checked pods: plan, install, replace, compare, remove."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bireme.clusters.base import Cluster
from bireme.clusters.waiting import until
from bireme.core.errors import BiremeError
from bireme.core.labels import AUTOSCALE_ANNOTATION, FAILURE_ANNOTATION, RELEASE_LABEL
from bireme.core.manifests import Manifest
from bireme.helm import Renderer, RenderRequest
from bireme.helm import values as value_files
from bireme.live import observe, why
from bireme.live.doctor import Doctor
from bireme.live.observe import Difference, Observation
from bireme.live.pod_http import metrics_port, through_the_api
from bireme.live.pods import ObservedPod
from bireme.live.queue_position import UNSEEN, leave, queue_positions, without_waiting
from bireme.live.release import NoRelease, Release, Releases, Revision
from bireme.live.shards import shards
from bireme.live.summary import ReleaseStatus, Summary, summary
from bireme.live.timeline import Timeline
from bireme.live.worker_status import WorkerStatus, worker_answers
from bireme.plan.changes import Changes, changes, run_number
from bireme.plan.instances import Instance
from bireme.plan.object_diff import ObjectDiff, object_diffs
from bireme.plan.topology import Plan, autoscaled, expand
from bireme.plan.workloads import kind_of
from bireme.plan.workloads.model import WorkloadKind
from bireme_runtime.elastic.monitor.why import Cause, explain

_ANSWER_SECONDS = 5.0
# Processes print their stacks one after another.
_RANKS_SECONDS = 30.0
_NEEDED = (
    "it needs an elastic job with monitoring.metrics, one of whose pods is ready; bireme status {} shows them"
)
_COUNTS = ("parallelism", "completions", "replicas")
# By the first word of a line in a job chart's notes: the command that does the same.
_COMMANDS = {
    "Watch": "status {} --watch",
    "Logs": "logs {} --all --follow",
    "Scale": "scale {} N",
    "Stop": "stop {}",
    "Delete": "uninstall {}",
}


@dataclass(frozen=True)
class Deployer:
    """Deploys charts to one cluster and compares what is there with the plan.

    ``console`` shows progress; None is silent. A RenderRequest names what to deploy: chart, values, release,
    namespace, and which Helm.
    """

    cluster: Cluster
    releases: Releases
    renderer: Renderer
    instances: Mapping[str, Instance]
    console: Console | None = None

    def changes(self, wanted: RenderRequest) -> Changes:
        """What installing ``wanted`` will do to the release that is there. Raises BiremeError if none is."""
        return self._foreseen(self.releases.read(wanted.release, wanted.namespace), wanted)

    def diff(self, wanted: RenderRequest) -> tuple[ObjectDiff, ...]:
        """What installing ``wanted`` will change in the text of the release's objects.

        Raises BiremeError when there is no such release.
        """
        current = self.releases.read(wanted.release, wanted.namespace).manifests
        return object_diffs(current, self._upgrade(wanted), wanted.namespace)

    def install(
        self, wanted: RenderRequest, timeout: float = 300, replace_run: bool = False
    ) -> ReleaseStatus:
        """Install ``wanted``, or upgrade the release to it, and wait until it is as planned.

        A job that a queue holds, not for others to make room at once, is not waited for. ``timeout`` in
        seconds limits the wait, and the stop of an old run before it. ``replace_run`` stops a
        run whose job Kubernetes cannot change in place, and continues in the next run.
        Raises BiremeError for what the chart or the cluster refuses; nothing is changed then.
        """
        wanted = self.renderer.merged(wanted)
        if replace_run:
            wanted = self._next_run(wanted, timeout)
        rendered = self.renderer.render(wanted).manifests
        plan = expand(wanted.release, wanted.namespace, rendered, self.instances)
        made = self.releases.install(
            wanted.chart, wanted.release, wanted.namespace, wanted.values, create_namespace=True
        )
        if self._following(made.manifests):
            plan = self._planned(made)
        found = observe.wait(self.cluster, plan, timeout, self.console, partial(self._is_held, plan))
        there = self._queued(plan, found)
        return replace(there, notes=self._notes(made), causes=self._causes(there))

    def _notes(self, made: Release) -> str:
        """The chart's notes in Bireme's commands, without those that fake nodes cannot answer."""
        lines = []
        for line in made.notes.splitlines():
            word, _, rest = line.partition(" ")
            if word in _COMMANDS and rest.lstrip().startswith(("kubectl ", "helm ")):
                remark = "".join(rest.partition("   (")[1:])
                command = _COMMANDS[word].format(f"{made.name} --namespace {made.namespace}")
                line = f"{word:<8} bireme {command}{remark}"
            if word not in ("Logs", "Check") or self.cluster.provider != "embedded":
                lines.append(line)
        return "\n".join(lines)

    def status(self, release: str, namespace: str) -> ReleaseStatus:
        """The release as it is now, against its latest revision's plan. Raises BiremeError if none is."""
        installed = self.releases.read(release, namespace)
        there = self._compared(installed)
        services = through_the_api(self.cluster.api, _ANSWER_SECONDS, "services")
        datasets = shards(services, namespace, installed.manifests)
        answers = self._answers(installed, there.pods, "v1/status")
        runs = tuple(WorkerStatus.of(job, answer) for job, answer in answers.items())
        causes, kept = self._causes(there), self._kept_failures(release, namespace)
        return replace(there, shards=datasets, worker_statuses=runs, causes=causes, failures=kept)

    def summaries(self, revisions: Iterable[Revision]) -> list[Summary]:
        """Each release in a line. Of one that cannot be read there is Helm's status alone."""

        def of(revision: Revision) -> Summary:
            installed = self.releases.read(revision.release, revision.namespace)
            try:
                return summary(revision, self._compared(installed))
            except BiremeError:
                return Summary(revision, revision.status)

        return self.cluster.api.each(of, revisions)

    def timeline(self, release: str, namespace: str) -> Timeline:
        """What happened in the run of a release. Raises BiremeError when no worker tells."""
        installed = self.releases.read(release, namespace)
        pods = observe.observe(self.cluster, self._planned(installed))
        for job, answer in self._answers(installed, pods, "v1/timeline").items():
            return Timeline.of(job, answer, self._departures(job, namespace))
        raise BiremeError(f"no worker of {release} tells of its run: {_NEEDED.format(release)}")

    def _departures(self, job: str, namespace: str) -> Sequence[tuple[float, str]]:
        """When which worker had to leave an ill node; nothing for who may not read events."""
        selector = f"involvedObject.name={job},reason=LeavesIllNode"
        path = f"/api/v1/namespaces/{namespace}/events"
        events = self.cluster.api.items(path, unless=(403,), fieldSelector=selector)
        return [
            (datetime.fromisoformat(each["firstTimestamp"]).timestamp(), each["message"]) for each in events
        ]

    def why(self, release: str, namespace: str) -> tuple[Cause, list[str]]:
        """Why a release makes no step, and the pods that do not tell.

        Ranks that run tell where they stand. Where none runs, the pods tell how they ended. Raises
        BiremeError when neither does.
        """
        installed = self.releases.read(release, namespace)
        pods = observe.observe(self.cluster, self._planned(installed))
        ports = {item.name: port for item in installed.manifests if (port := metrics_port(item))}
        asked = [pod for pod in pods if pod.workload in ports and pod.ready]
        if not asked or self.cluster.provider == "embedded":
            if cause := why.crash(pods):
                return cause, []
            said = f"no worker of {release} tells of its ranks: {_NEEDED.format(release)}"
            raise BiremeError("\n".join([said, *self._kept_failures(release, namespace)]))
        ask = through_the_api(self.cluster.api, _RANKS_SECONDS)

        def answer(pod: ObservedPod) -> Mapping[str, Any] | None:
            return ask(namespace, {"metadata": {"name": pod.name}}, ports[pod.workload], "v1/ranks")

        answers = self.cluster.api.each(answer, asked)
        states, silent = why.told(dict(zip((pod.name for pod in asked), answers, strict=True)))
        return explain(states), silent

    def _kept_failures(self, release: str, namespace: str) -> tuple[str, ...]:
        """What the controller has kept on the Jobs of a release; nothing for who may not list Jobs."""
        path, label = f"/apis/batch/v1/namespaces/{namespace}/jobs", f"{RELEASE_LABEL}={release}"
        jobs = self.cluster.api.items(path, unless=(403,), labelSelector=label)
        found = (each["metadata"] for each in jobs)
        kept = ((each["name"], (each.get("annotations") or {}).get(FAILURE_ANNOTATION)) for each in found)
        return tuple(f"{name} failed first at {said}" for name, said in kept if said)

    def planned(self, release: str, namespace: str) -> Plan:
        """The plan of a release's latest revision. Raises BiremeError if there is none.

        Jobs that follow the capacity have the workers that the controller has given them.
        """
        return self._planned(self.releases.read(release, namespace))

    def resized(self, release: str, namespace: str, workers: int, charts: Path) -> RenderRequest:
        """The request that gives a release of one of ``charts`` (their folder) another number of workers.

        Raises BiremeError when there is no such release, or when it was made from another chart or version.
        """
        request = self._revalued(release, namespace, charts, {"workers": workers}, f"workers={workers}")
        if ((request.values.get("elastic") or {}).get("autoscale") or {}).get("enabled"):
            raise BiremeError(
                f"the number of workers of {release} follows the capacity: change elastic.autoscale.min and "
                "elastic.autoscale.max instead, or set elastic.autoscale.enabled=false"
            )
        return request

    def suspended(self, release: str, namespace: str, suspend: bool, charts: Path) -> RenderRequest:
        """The request that stops the pods of a job, or starts them again; as `resized`."""
        flag = f"job.suspend={json.dumps(suspend)}"
        request = self._revalued(release, namespace, charts, {"job": {"suspend": suspend}}, flag)
        if (request.values.get("queue") or {}).get("name"):
            raise BiremeError(
                f"{release} is started and stopped by its queue: take it out with bireme uninstall {release}"
            )
        return request

    def _revalued(
        self, release: str, namespace: str, charts: Path, values: Mapping[str, Any], flag: str
    ) -> RenderRequest:
        installed = self.releases.read(release, namespace)
        revision, chart = installed.revision, charts / installed.revision.chart_name
        if revision.version_here(charts) != revision.chart_version:
            raise BiremeError(
                f"{release} was made from {revision.chart}, which is not among the charts here: "
                f"use helm upgrade {release} CHART --reuse-values --set {flag}"
            )
        if not values.keys() <= value_files.read_file(chart / "values.yaml").keys():
            key = flag.partition("=")[0]
            raise BiremeError(f"{release} is no training job: {revision.chart_name} has no value `{key}`")
        return RenderRequest(chart, value_files.merge(installed.values, values), release, namespace)

    def _compared(self, installed: Release) -> ReleaseStatus:
        plan = self._planned(installed)
        return self._queued(plan, observe.check(self.cluster, plan))

    def _queued(self, plan: Plan, found: Observation) -> ReleaseStatus:
        """What was found, with one difference for each job that waits in its queue."""
        waits = queue_positions(self.cluster.api, plan.namespace, plan.queued)
        differences = without_waiting(found.differences, plan.queued, waits)
        return ReleaseStatus(plan, found.pods, differences, queue_positions=waits, workloads=found.workloads)

    def _causes(self, there: ReleaseStatus) -> tuple[str, ...]:
        """Why pods have no node, or a DaemonSet no pods, as far as the nodes themselves tell."""
        plan = there.plan
        is_pending = any(each.category == "pending" and each.pod for each in there.differences)
        if not is_pending and not any(each.instance_types is not None for each in plan.workloads):
            return ()
        return Doctor(self.cluster.api, plan, plan.objects, self.instances).shortage()

    def uninstall(self, release: str, namespace: str, timeout: float = 300) -> None:
        """Remove a release and wait until its pods are gone. Raises BiremeError when there is none."""
        plan = self.planned(release, namespace)
        # Read before, so that the pods are known when what made them is gone.
        live = observe.LiveRelease(self.cluster, plan).read()
        if not self.releases.uninstall(release, namespace, timeout):
            raise self.releases.missing(release, namespace)
        leave(self.cluster.api, namespace, plan.queued)
        gone = f"the pods of {release} to be gone: bireme status {release} says why they are not"
        until(lambda: not live.read().pods(), timeout, gone)

    def _answers(
        self, installed: Release, pods: Sequence[ObservedPod], path: str
    ) -> Mapping[str, Mapping[str, Any]]:
        # Nothing runs in the pods of an embedded cluster, and their addresses may be silent.
        asked = () if self.cluster.provider == "embedded" else pods
        ask = through_the_api(self.cluster.api, _ANSWER_SECONDS)
        return worker_answers(ask, installed.namespace, installed.manifests, asked, path)

    def _planned(self, release: Release) -> Plan:
        follow = self._following(release.manifests)
        live = (
            self._as_resized(each, release.namespace) if (each.kind, each.name) in follow else each
            for each in release.manifests
        )
        return expand(release.name, release.namespace, tuple(live), self.instances)

    @staticmethod
    def _following(manifests: Sequence[Manifest]) -> set[tuple[str, str]]:
        """Kinds and names of the objects whose number of pods a controller decides."""
        ours = {(each.kind, each.name) for each in manifests if AUTOSCALE_ANNOTATION in each.annotations}
        return ours | set(autoscaled(manifests))

    def _as_resized(self, item: Manifest, namespace: str) -> Manifest:
        kind = kind_of(item)
        path = kind.path(item.namespace or namespace, item.api_version) if kind else ""
        live = self.cluster.api.find(f"{path}/{item.name}") if path else None
        counts = {
            name: n for name in _COUNTS if (n := ((live or {}).get("spec") or {}).get(name)) is not None
        }
        content = item.thaw()
        return Manifest({**content, "spec": {**(content.get("spec") or {}), **counts}}, item.source)

    def _is_held(self, plan: Plan, differences: tuple[Difference, ...], unchanged: float) -> bool:
        """Whether only queues that have seen the job hold its pods back, and no job is preempted for it."""
        there = self._queued(plan, Observation((), differences))
        whys = [each.why for each in there.queue_positions]
        is_seen = unchanged > observe.UNSEEN_SECONDS or UNSEEN not in whys
        return there.is_held and is_seen and not any("preempt" in each.lower() for each in whys)

    def _foreseen(self, live: Release, wanted: RenderRequest) -> Changes:
        return changes(live.manifests, self._upgrade(wanted), wanted.namespace)

    def _upgrade(self, wanted: RenderRequest) -> tuple[Manifest, ...]:
        return self.renderer.render(replace(wanted, is_upgrade=True)).manifests

    def _next_run(self, wanted: RenderRequest, timeout: float) -> RenderRequest:
        """``wanted``, or its next run if the live one cannot change in place; that one is then stopped."""
        live = self.releases.read(wanted.release, wanted.namespace)
        try:
            manifests = live.manifests
        except NoRelease:
            return wanted
        jobs = [(item, kind) for item in manifests if (kind := kind_of(item)) and kind.suspension]
        foreseen = self._foreseen(live, wanted)
        if foreseen.is_refused:
            run = max((run_number(job) or 0 for job, _ in jobs), default=0) + 1
            kept = dict(wanted.values)
            if "job" in kept:
                kept["job"] = {key: value for key, value in kept["job"].items() if key != "suspend"}
            wanted = replace(wanted, values=kept | {"run": run})
            foreseen = self._foreseen(live, wanted)
        if foreseen.is_refused:
            raise BiremeError("\n".join(foreseen.sentences()))
        if any(change.action == "replace" for change in foreseen.changes):
            for job, kind in jobs:
                self._stop(job, kind, wanted, timeout)
        return wanted

    def _stop(self, job: Manifest, kind: WorkloadKind, wanted: RenderRequest, timeout: float) -> None:
        """Suspend a job and wait until its pods are gone; they have their grace period to save."""
        path = f"{kind.path(wanted.namespace, job.api_version)}/{job.name}"
        if self.cluster.api.find(path) is None:
            return
        self.cluster.api.patch(path, {"spec": kind.suspension})

        watched = observe.LiveRelease(
            self.cluster, expand(wanted.release, wanted.namespace, [job], self.instances)
        )

        def is_stopped() -> bool:
            pods = watched.read().pods()
            # The chart's rule reads the job's status, which follows the pods.
            return all(pod.workload != job.name for pod in pods) and kind.is_stopped(
                self.cluster.api.find(path) or {}
            )

        until(
            is_stopped,
            timeout,
            f"the pods of {job.name} to end, which was suspended to be replaced; nothing else was changed: "
            f"look at them with bireme status {wanted.release}, then try again",
        )
