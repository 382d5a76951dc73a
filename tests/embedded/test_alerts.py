"""A real Prometheus takes the alerts of a torch-elastic job, and scrapes what a worker tells."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters import programs
from bireme.helm import Render
from bireme.helm.yaml import as_json
from bireme.tools import Toolbox
from bireme_runtime.elastic import progress
from bireme_runtime.elastic.monitor import failures
from bireme_runtime.elastic.monitor.status import Starts, WorkerStatus
from bireme_runtime.process.server import Background
from tests.runtime.etcd_servers import free_port
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
    (tmp_path / "rules.yaml").write_text(as_json(rule["spec"]))
    seen = progress.Progress()
    seen.take(b"step 1")
    worker, port = free_port(), free_port()
    Background(WorkerStatus(Starts(), seen, failures.Ledger(), lambda: "").answer, "", worker)
    labels = {"namespace": job["metadata"]["namespace"], "pod": f"{job.name}-0-x7fk2"}
    scraped = {"targets": [f"127.0.0.1:{worker}"], "labels": labels}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{tmp_path}/rules.yaml"],
        "scrape_configs": [{"job_name": "workers", "static_configs": [scraped]}],
    }
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    arguments = [f"--config.file={tmp_path}/prometheus.yaml", f"--storage.tsdb.path={tmp_path}/data"]
    arguments += [f"--web.listen-address=127.0.0.1:{port}"]
    program = programs.start(tmp_path, toolbox.path("prometheus"), arguments, {})
    try:
        url = f"http://127.0.0.1:{port}"
        program.wait_ready(f"{url}/-/ready", 120)
        until(lambda: all(each["health"] == "ok" for each in rules(url)), what="all rules are read")
        until(
            lambda: (
                [each["name"] for each in rules(url) if each["state"] == "firing"] == ["TrainingMakesNoStep"]
            ),
            what="the alert",
        )
    finally:
        program.stop()
