"""mpirun over ssh across pods of one Indexed Job; test_mpi_pods.py has what else their entry point does."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from on_kind import NODE_TYPE, Shell, eventually

from bireme.pytest_plugin import ReleaseFactory

KIND = "values/kind-mpi.yaml"


@pytest.fixture(scope="module", autouse=True)
def images(load: Callable[..., None]) -> None:
    load("mpi-4", "mpi-5")


@pytest.mark.parametrize("tag", ["0.1.0-openmpi4", "0.1.0-openmpi5"])
def test_ranks_on_all_workers_add_up(release: ReleaseFactory, shell: Shell, tag: str) -> None:
    # Two slots on workers without an accelerator, which the nodes have one of.
    sets = [f"image.tag={tag}", "workers=2", "accelerators=0", "slots=2", "np=4"]
    values = {"tolerations": [{"operator": "Exists"}]}
    said = {"instance": NODE_TYPE, "files": [KIND], "timeout": 180}
    job = release("mpi-training", sets=sets, values=values, **said)

    def found() -> list[tuple[str, str]]:
        logs = shell.logs(f"app.kubernetes.io/instance={job.name}", job.namespace)
        return sorted(re.findall(r"rank (\d) of 4 on (\S+): all-reduce agrees", logs))

    eventually(lambda: len(found()) == 4, 90, "four ranks that agree")
    assert found() == [(str(rank), f"{job.name}-r1-{rank // 2}") for rank in range(4)]
    job.until(lambda: not [pod for pod in job.pods() if pod.is_live] and job.differences() == ())
    (launcher,) = [pod for pod in job.pods() if pod.phase == "Succeeded"]
    assert launcher.slot == f"{job.name}-r1-0"
