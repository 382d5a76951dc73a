"""The loop of `bireme autoscale`: look at the cluster, decide, patch Jobs; a level loop without memory.

What it has to remember is on the Jobs, so that another controller can go on in its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from bireme.autoscale.cluster import World, plan, running
from bireme.autoscale.decisions import Resize
from bireme.autoscale.events import MANAGER, record
from bireme.autoscale.failures import FirstFailures
from bireme.autoscale.illness import IllNodes
from bireme.autoscale.lease import Lease
from bireme.autoscale.sources import measured, quotas, saving
from bireme.clusters.api import MERGE_PATCH, Api, ApiError
from bireme.core.errors import BiremeError
from bireme.core.labels import AUTOSCALE_ANNOTATION, RESIZED_ANNOTATION
from bireme.live.pod_http import Ask
from bireme_runtime.process.server import Background, Request, Response

# Decisions on older facts are not carried out.
_STALE_SECONDS = 60
_SILENT_SECONDS = 120


class Controller:
    """Resizes the jobs of a cluster, and keeps their first failures.

    ``ask`` reaches workers, ``tell`` gets a line for people. ``lease`` is what it must hold to change
    anything. Without one it acts alone. Only Jobs of ``namespaces`` change, all if there are none. With
    ``dry_run`` it says what would change. ``prometheus`` is the address for jobs with a metric. With
    ``ill_nodes`` workers leave these.
    """

    def __init__(
        self,
        api: Api,
        ask: Ask,
        tell: Callable[[str], None],
        lease: Lease | None = None,
        namespaces: Sequence[str] = (),
        dry_run: bool = False,
        prometheus: str = "",
        ill_nodes: bool = False,
    ) -> None:
        self._api, self._ask, self._tell, self._lease = api, ask, tell, lease
        self._namespaces, self._dry_run, self._prometheus = namespaces, dry_run, prometheus
        self._told: set[str] = set()
        self._failures = FirstFailures(api, self._tell_once, namespaces)
        self._ill = IllNodes(api, tell, self._tell_once, namespaces, dry_run) if ill_nodes else None
        self._saving: frozenset[str] = frozenset()
        self._state = ""
        self._passed = time.monotonic()

    def run(self, every: float, stop: threading.Event) -> None:
        """Pass after pass, ``every`` so many seconds, until ``stop`` is set."""
        while not stop.is_set():
            try:
                if self.leads():
                    self.once()
                self._passed = time.monotonic()
            except BiremeError as error:
                self._become(f"trying again: {error}")
            stop.wait(every)
        if self._lease:
            self._lease.release()

    def serve_health(self, port: int) -> None:
        """Answer to /healthz at ``port`` from now on: 200, or 500 if no pass ended for two minutes."""

        def answer(request: Request) -> Response:
            is_well = time.monotonic() - self._passed < _SILENT_SECONDS
            return Response(404 if request.path != "/healthz" else 200 if is_well else 500)

        Background(answer, "", port)

    def leads(self) -> bool:
        """Whether this controller may act: it holds the lease now. Raises ApiError."""
        if self._lease is None:
            return True
        held = self._lease.renew()
        self._become("leading" if held else f"waiting: {self._lease.other or 'another'} leads")
        return held

    def once(self) -> tuple[Resize, ...]:
        """Look and resize once; what was changed, or with ``dry_run`` would be. Raises ApiError."""
        if self._ill:
            self._ill.once()
        if not self._dry_run:
            self._failures.once()
        now = time.time()
        world = self._look()
        decided = self._decide(world, now)
        if time.time() - now > _STALE_SECONDS or (self._lease and not self._lease.renew()):
            return ()
        return tuple(each for each in decided if self._apply(world, each))

    def _look(self) -> World:
        jobs = self._api.among(self._namespaces, "/apis/batch/v1", "jobs", labelSelector=AUTOSCALE_ANNOTATION)
        if not jobs:
            return World((), (), ())
        pods = self._api.items("/api/v1/pods")
        found, sentences = running(jobs, pods)
        for sentence in sentences:
            self._tell_once(sentence)
        nodes = self._api.items("/api/v1/nodes")
        values = measured(found, self._prometheus, self._tell_once)
        return World(nodes, pods, found, quotas(self._api, found), values)

    def _decide(self, world: World, now: float) -> tuple[Resize, ...]:
        """What changes, without jobs that save. Only workers of jobs that would change are asked."""
        jobs = {job.key: job for job in world.jobs}
        asked: set[str] = set()
        while True:
            decided = plan(world, now)
            new = [jobs[each.job] for each in decided if each.job not in asked]
            found = saving(self._ask, new)
            if not found:
                self._saving = world.saving
                return decided
            for key in sorted(found - self._saving):
                self._tell(f"{key}: it writes a checkpoint, and is resized after it")
            asked |= {job.key for job in new}
            world = replace(world, saving=world.saving | found)

    def _apply(self, world: World, resize: Resize) -> bool:
        job = next(job for job in world.jobs if job.key == resize.job)
        said = f"{job.workers} → {resize.workers} workers: {resize.why}"
        if self._dry_run:
            self._tell(f"{job.key}: {said}")
            return True
        if self._lease is not None and not self._lease.is_held:
            # Paused for long, perhaps: another may lead, and has decided on newer facts.
            return False
        count = resize.workers + job.policy.spares
        change = {
            "metadata": {
                # The server refuses the patch of a Job that has changed since it was read.
                "resourceVersion": job.live["metadata"]["resourceVersion"],
                "annotations": {RESIZED_ANNOTATION: datetime.now(UTC).isoformat(timespec="seconds")},
            },
            "spec": {"parallelism": count, "completions": count},
        }
        path = f"/apis/batch/v1/namespaces/{job.namespace}/jobs/{job.name}"
        try:
            self._api.patch(path, change, MERGE_PATCH, fieldManager=MANAGER)
        except ApiError as error:
            # Otherwise it has gone, or has changed meanwhile.
            if error.status in (403, 422):
                self._tell_once(f"{job.key}: {error}")
            elif error.status not in (404, 409):
                raise
            return False
        self._tell(f"{job.key}: {said}")
        about = {**job.live["metadata"], "apiVersion": "batch/v1", "kind": "Job"}
        try:
            record(self._api, job.namespace, about, "Resized", said)
        except ApiError as error:
            self._tell_once(f"{job.key}: its event was not recorded: {error}")
        return True

    def _become(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._tell(state)

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self._tell(sentence)
