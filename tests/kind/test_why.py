"""`bireme why` on plain scripts with a planted fault, by torch with a Flight Recorder for gloo."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.kind.training import ANYWHERE, KIND, outcome
from tests.runtime.planted_hangs import FAULTS, WITHOUT_A_LINE

pytestmark = pytest.mark.whole

HANGS = Path(__file__).parents[1] / "runtime/with_torch/faults.py"
RAISES = """
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1, 10):
    if step == 3 and dist.get_rank() == 1:
        raise ValueError("a bad sample")
    dist.barrier()
"""

Start = Callable[..., InstalledRelease]


@pytest.fixture
def start(release: ReleaseFactory, load: Callable[..., None]) -> Start:
    """``start(script, *args, workers=3, least=2)``: the script runs on three nodes."""
    load("etcd", "python", "torch-2.14")

    def install(script: str, *args: str, workers: int, least: int, failures: int = 5) -> InstalledRelease:
        values = {
            **ANYWHERE, "image": {"tag": "0.1.0-torch2.14"}, "script": script, "args": list(args),
            "workers": workers, "elastic": {"minWorkers": least, "maxWorkers": workers},
            "recovery": {"failuresWithoutProgress": failures},
        }  # fmt: skip
        return release("torch-elastic", values=values, instance=NODE_TYPE, files=[KIND], timeout=180)

    return install


def why(job: InstalledRelease) -> dict[str, Any]:
    """What the command answers."""
    where = ["-n", job.namespace, "--kubeconfig", str(job.cluster.kubeconfig), "-o", "json"]
    done = CliRunner().invoke(cli, ["why", job.name, *where], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("stuck_in_the_loader", 3),
        ("stuck_in_user_code", 3),
        # Among three, gloo ends the collective on all neighbours of the rank.
        ("another_shape", 4),
        ("a_stopped_process", 3),
        ("an_early_end", 4),
    ],
)
def test_the_rank_that_hangs_is_named_with_its_node_and_line(
    start: Start, shell: Shell, name: str, count: int
) -> None:
    _, ranks, words = FAULTS[name]
    job = start(HANGS.read_text(), name, workers=count, least=count)
    workers = f"app.kubernetes.io/instance={job.name},app.kubernetes.io/component=worker"
    until(lambda: "step 2" in shell.logs(workers, job.namespace), 180, "the good steps to be made")
    found: dict[str, Any] = {}

    def told() -> bool:
        # A rank that has not yet reached its collective makes the answer uncertain.
        found.update(why(job))
        said = "\n".join([found["sentence"], *found["evidence"]])
        return bool(found["certain"]) and words in said

    until(told, 60, lambda: f"{words!r} instead of {found}")
    print(f"{name}: {found['sentence']}")
    assert found["ranks"] == list(ranks)
    # Rank 1 may be of any worker, since ranks follow the order in which they came.
    (node,) = re.findall(rf"rank {ranks[0]} on (\S+)", found["sentence"])[:1]
    assert node in {pod.node for pod in job.pods()}
    assert name in WITHOUT_A_LINE or re.search(r"train\.py:\d+", found["sentence"])
    assert found["silent"] == []
    assert found["remedy"]


def test_the_exception_of_one_rank_is_named_with_its_line_after_the_job_has_ended(start: Start) -> None:
    job = start(RAISES, workers=3, least=2, failures=1)
    until(lambda: outcome(job) == "Failed", 240, "the same exception on two nodes to end the job")
    found = why(job)
    print(found["sentence"])
    assert "rank 1 on " in found["sentence"]
    assert "ValueError: a bad sample" in found["sentence"]
    assert (found["kind"], found["line"]) == ("exception", "train.py:6")
