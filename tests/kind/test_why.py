"""`bireme why` on a run that hangs, and that nothing has noticed yet."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.kind.training import KIND

pytestmark = [pytest.mark.usefixtures("torch_images"), pytest.mark.whole]

HANGS = """
import time
import torch
import torch.distributed as dist
def load_batch(step):
    if step == 3 and dist.get_rank() == 1:
        time.sleep(3600)
dist.init_process_group("gloo")
for step in range(1, 10):
    load_batch(step)
    dist.all_reduce(torch.ones(1))
    print(f"step {step}", flush=True)
"""


def test_the_rank_that_hangs_is_named_with_its_node_and_line(release: ReleaseFactory, shell: Shell) -> None:
    values = {"script": HANGS, "workers": 3, "elastic": {"minWorkers": 3}}
    job = release("torch-elastic", values=values, instance=NODE_TYPE, files=[KIND], timeout=180)
    workers = f"app.kubernetes.io/instance={job.name},app.kubernetes.io/component=worker"
    until(lambda: shell.logs(workers, job.namespace).count("step 2") == 3, 180, "all ranks to make step 2")
    where = ["-n", job.namespace, "--kubeconfig", str(job.cluster.kubeconfig), "-o", "json"]

    def answer() -> dict[str, Any]:
        done = CliRunner().invoke(cli, ["why", job.name, *where], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    until(lambda: answer()["ranks"] == [1], 60, "rank 1 to be named")
    found = answer()
    # Rank 1 may be of any worker, since ranks follow the order in which they came.
    (node,) = re.findall(r"all wait for rank 1 on (\S+) in load_batch \(", found["sentence"])
    assert node in {pod.node for pod in job.pods()}
    assert found["silent"] == []
    assert found["remedy"]
