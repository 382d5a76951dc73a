"""A Paddle job on kind: the logs of its trainers, its dispatcher, and ways to kill its parts."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bireme.clusters.api import ApiError
from bireme.testing.pytest_plugin import InstalledRelease
from tests.kind.shell import Shell

ON_KIND = "values/kind-paddle.yaml"
FOLDER = "/home/jobpath"
# Trainers that may come and go.
DYNAMIC = {
    "paddle": {"dispatch": "dynamic"},
    "etcd": {"enabled": True, "persistence": {"whenDeleted": "Delete"}},
}
Event = dict[str, Any]


class PaddleJob:
    """One release of the chart, and the folder of its output on the claim."""

    def __init__(
        self, release: InstalledRelease, output: Path, shell: Shell, installed: Mapping[str, Any]
    ) -> None:
        self.release = release
        self.output = output
        self.shell = shell
        self._installed = installed

    def events(self, name: str, trainer: int | None = None) -> list[Event]:
        """The events of that name in the logs of all trainers or of one, in order for each trainer."""
        logs = sorted(self.output.glob(f"node_{'*' if trainer is None else trainer}/train.log"))
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        found = [json.loads(line) for line in lines if line.startswith('{"event"') and line.endswith("}")]
        return [event for event in found if event["event"] == name]

    def output_of_all(self) -> str:
        logs = sorted(self.output.glob("node_*/*.log"))
        return "\n".join(f"{each}:\n{each.read_text(errors='replace')[-1500:]}" for each in logs)

    def until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for ``done``; fail the test with the end of the job's logs."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}\n{self.output_of_all()}"
            time.sleep(0.2)

    def outcomes(self) -> dict[str, str]:
        """The final condition of each Job of the release, by name."""
        return {
            job["metadata"]["name"]: each["type"]
            for job in self.release.objects("jobs")
            for each in job["status"].get("conditions", [])
            if each["type"] in ("Complete", "Failed") and each["status"] == "True"
        }

    def until_ended(self, seconds: float = 420) -> None:
        """Wait until all Jobs are Complete, those of the pservers too."""
        jobs = set(self.release.names("jobs"))
        self.until(lambda: set(self.outcomes()) == jobs, seconds, f"the end of {jobs}")
        assert set(self.outcomes().values()) == {"Complete"}, self.output_of_all()

    def pod(self, role: str, index: int) -> str:
        """The name of the running pod of a trainer or pserver."""
        labels = {
            "app.kubernetes.io/component": role,
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        (found,) = [
            pod["metadata"]["name"]
            for pod in self.release.objects("pods")
            if labels.items() <= pod["metadata"]["labels"].items() and pod["status"]["phase"] == "Running"
        ]
        return str(found)

    def kill(self, pod: str, container: str, when: Callable[[], bool] = lambda: True) -> float:
        """SIGKILL all processes of a container as soon as ``when`` is true; returns the Unix time."""
        node, process = self.shell.first_process(self.release.namespace, pod, container)
        self.until(when, 180, "the moment to kill")
        self.shell.cluster.on_node(node, "kill", "-9", process)
        return time.time()

    def is_in_the_middle(self, trainer: int) -> bool:
        """Whether a trainer has begun a shard and has steps of it left."""
        steps = [(each["pass"], each["shard"]) for each in self.events("step", trainer)]
        return bool(steps) and 3 <= steps.count(steps[-1]) <= 8

    def scale(self, trainers: int) -> None:
        """Upgrade to another number of trainers; returns when so many are there."""
        self._installed = {**self._installed, "values": {**self._installed["values"], "workers": trainers}}
        self.release.upgrade(**self._installed)

    def restored(self, since: float) -> set[int]:
        """The trainers that have started from a saved state."""
        return {each["trainer"] for each in self.events("start") if each["restored"] and each["time"] > since}

    @property
    def attempt(self) -> int:
        """How many times the run has started."""
        return int(json.loads((self.output / "run.json").read_text())["attempt"])

    @property
    def passes(self) -> list[str]:
        """The folders of the passes that are done, by name."""
        return sorted(each.parent.name for each in self.output.glob("pass-*/done"))

    # The dispatcher ----------------------------------------

    def dispatcher(self) -> dict[str, Any]:
        """The dispatcher's status: its leader and the job's shards; empty while it does not answer."""
        api, name = self.release.cluster.api, f"{self.release.name}-dispatcher"
        try:
            status = api.proxied(self.release.namespace, name, 7190, "v1/status", 5)
        except ApiError:
            return {}
        # Each attempt has a dataset of its own, whose name ends with the attempt's number.
        by_attempt = sorted(status["datasets"], key=lambda each: int(each["dataset"].rpartition("-")[2]))
        return {"leader": status["leader"], **(by_attempt[-1] if by_attempt else {})}

    def leader(self) -> str:
        """The pod whose dispatcher is the leader; empty while there is none."""
        address = self.dispatcher().get("leader", "").rpartition(":")[0]
        pods = self.release.objects("pods")
        return next((pod["metadata"]["name"] for pod in pods if pod["status"].get("podIP") == address), "")

    def ended_passes(self) -> list[tuple[int, int]]:
        """The number of done and failed shards of each pass that has ended, from etcd."""
        prefix = f"/bireme/dispatcher/{self.release.namespace}/{self.release.name}/d/"
        span = {"key": prefix, "range_end": prefix[:-1] + "0"}
        body = {key: base64.b64encode(text.encode()).decode() for key, text in span.items()}
        etcd = f"{self.release.name}-etcd-0"
        kvs = self.shell.ask_etcd(self.release.namespace, etcd, "kv/range", body).get("kvs", [])
        found = {
            base64.b64decode(each["key"]).decode(): base64.b64decode(each.get("value", "")) for each in kvs
        }
        ended = [json.loads(found[key]) for key in sorted(found) if "/passes/" in key]
        return [(each["done"], each["failed"]) for each in ended]

    def until_progress(self, shards: int, seconds: float = 120) -> None:
        """Wait until trainers have done this many more shards."""
        wanted = len(self.events("shard")) + shards
        self.until(lambda: len(self.events("shard")) >= wanted, seconds, f"{shards} more shards")


Jobs = Callable[..., PaddleJob]
