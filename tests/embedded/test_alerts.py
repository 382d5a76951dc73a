"""A real Prometheus takes the alerts of a torch-elastic job, and scrapes what a worker tells."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bireme.helm import Render
from bireme.helm.yaml import as_json
from bireme.tools import Toolbox
from bireme_runtime.elastic import progress
from bireme_runtime.elastic.monitor import failures
from bireme_runtime.elastic.monitor.status import Starts, WorkerStatus
from bireme_runtime.process.server import Background
from tests.runtime.etcd_servers import free_port
from tests.support.prometheus import scraping
from tests.support.rendered import the
from tests.support.waiting import until

pytestmark = pytest.mark.whole


def rules(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=10) as answer:
        return [rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]]


def test_a_run_without_steps_is_told(toolbox: Toolbox, render: Callable[..., Render], tmp_path: Path) -> None:
    alerts = {"enabled": True, "noStepSeconds": 2}
    rendered = render("torch-elastic", values={"monitoring": {"metrics": {"alerts": alerts}}})
    job, rule = the(rendered, "Job"), the(rendered, "PrometheusRule")
    seen = progress.Progress()
    seen.take(b"step 1")
    worker = free_port()
    Background(WorkerStatus(Starts(), seen, failures.Ledger(), lambda: "").answer, "", worker)
    labels = {"namespace": job["metadata"]["namespace"], "pod": f"{job.name}-0-x7fk2"}
    target = {"targets": [f"127.0.0.1:{worker}"], "labels": labels}
    with scraping(toolbox, tmp_path, target, as_json(rule["spec"])) as running:
        url = running.url
        until(lambda: all(each["health"] == "ok" for each in rules(url)), what="all rules are read")
        until(
            lambda: (
                [each["name"] for each in rules(url) if each["state"] == "firing"] == ["TrainingMakesNoStep"]
            ),
            what="the alert",
        )
