"""horovodrun in containers on one network, by itself and elastic, as in pods but without a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kind.shell import until
from tests.kind.test_mpi_pods import USER, Pods, docker, image, start

__all__ = ["image", "start"]

pytestmark = pytest.mark.whole

STEPS = 300
# The first ranks may start slowly, and the third worker's first process never come to the world.
ELASTIC = f"""
import os, pathlib, time
shared, is_third = pathlib.Path("/shared"), os.uname().nodename.endswith("-2")
if os.environ.get("THIRD_IS_STUCK") and is_third and not (shared / "newcomer").exists():
    (shared / "newcomer").touch()
    time.sleep(600)
if not is_third:
    (shared / "starts").touch()
    time.sleep(float(os.environ.get("SLOW_SECONDS", "0")))
import horovod.torch as hvd
import torch
hvd.init()
saved = shared / "step"
state = hvd.elastic.TorchState(step=int(saved.read_text()) if saved.exists() else 0)
@hvd.elastic.run
def train(state):
    print("world of", hvd.size(), "from step", state.step, flush=True)
    while state.step < {STEPS} or hvd.size() < int(os.environ.get("LEAST", "0")):
        assert int(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()
        state.step += 1
        if hvd.rank() == 0:
            saved.with_suffix(".new").write_text(str(state.step))
            saved.with_suffix(".new").replace(saved)
        time.sleep(0.2)
        state.commit()
train(state)
"""
BY_ITSELF = """
hosts=$(sed 's/ slots=/:/' "$BIREME_HOSTFILE" | paste -sd,)
exec horovodrun --gloo -np 4 -H "$hosts" python3 -c '
import os, horovod.torch as hvd
hvd.init()
print("rank", hvd.rank(), "of", hvd.size(), "on", os.uname().nodename, flush=True)'
"""


def test_horovodrun_as_the_command_starts_all_ranks(start: Callable[..., Pods]) -> None:
    pods = start("mpi", USER, ["sh", "-c", BY_ITSELF], command=True)
    assert pods.exit_code() == 0, pods.output()
    found = set(re.findall(r"rank (\d) of 4 on (\S+)", pods.output()))
    assert found == {(str(rank), f"{pods.job}-{rank // 2}") for rank in range(4)}


ONE_RANK_EACH = {"BIREME_MPI_WORKERS": "3", "BIREME_MPI_SLOTS": "1", "BIREME_MPI_LEAST": "2"}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that all pods have at /shared, with the program."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "elastic.py").write_text(ELASTIC)
    return folder


def test_a_worker_that_comes_while_the_first_ranks_start_is_taken_in(
    start: Callable[..., Pods], shared: Path
) -> None:
    options, program = [*USER, f"--volume={shared}:/shared"], ["python3", "/shared/elastic.py"]
    env = {**ONE_RANK_EACH, "SLOW_SECONDS": "30", "LEAST": "3"}
    pods = start("mpi", options, program, **env)
    until((shared / "starts").exists, what="the first ranks to start")
    start("mpi", options, program, indices=(2,), **env)
    assert pods.exit_code() == 0, pods.output()
    assert "world of 3" in pods.output()


def test_a_worker_that_is_killed_while_a_new_world_forms_costs_a_new_start_at_most(
    start: Callable[..., Pods], shared: Path
) -> None:
    options, program = [*USER, f"--volume={shared}:/shared"], ["python3", "/shared/elastic.py"]
    env = {**ONE_RANK_EACH, "HOROVOD_GLOO_TIMEOUT_SECONDS": "10", "THIRD_IS_STUCK": "1"}
    pods = start("mpi", options, program, **env)
    pods.until_printed("world of 2 from step 0")
    start("mpi", options, program, indices=(2,), **env)
    until((shared / "newcomer").exists, what="the third worker's process")
    docker("kill", f"{pods.job}-2")
    if pods.exit_code() != 0:
        output, reached = pods.output(), int((shared / "step").read_text())
        assert "horovodrun ended with exit code" in output
        # The Job replaces its launcher's pod, and the program goes on from its last save.
        docker("rm", f"{pods.job}-0")
        start("mpi", options, program, indices=(0,), **env)
        assert pods.exit_code() == 0, f"{output}\nthe next start:\n{pods.output()}"
        assert f"world of 2 from step {reached}" in pods.output()
    assert int((shared / "step").read_text()) == STEPS
    assert "world of 3" not in pods.output()
