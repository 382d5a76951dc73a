"""mpirun over ssh across pods: with and without the operator, as user and as root, by each MPI.

test_mpi_pods.py has what else their entry point does.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import NODE_TYPE, Shell, until

KIND = "values/kind-mpi.yaml"
AS_ROOT = "values/mpi-as-root.yaml"
ORCHESTRATORS = ("Job", "MPIJob")
EACH_ORCHESTRATOR = pytest.mark.parametrize("orchestrator", ORCHESTRATORS)
WELL = ("Complete", "Succeeded")
PATHS = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs/{}-r1",
    "MPIJob": "/apis/kubeflow.org/v2beta1/namespaces/{}/mpijobs/{}-r1",
}
# By the tag of the image: the chart's name of its MPI, and the image's recipe.
MPIS = {
    "openmpi4": ("OpenMPI", "mpi-4"),
    "openmpi5": ("OpenMPI", "mpi-5"),
    "intel2021": ("Intel", "mpi-intel"),
    "mpich5": ("MPICH", "mpi-mpich"),
}
CORE = {("Job", "root", "openmpi5"), ("MPIJob", "user", "openmpi5")}
COMBINATIONS = [
    pytest.param(*each, marks=() if each in CORE else pytest.mark.whole)
    for each in itertools.product(ORCHESTRATORS, ("user", "root"), MPIS)
]

# Each step is an all-reduce, and rank 0 prints its number. When one rank gets SIGTERM, every rank saves its
# step, from which the next start resumes.
STEPS = """
import os, pathlib, signal, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
saved = pathlib.Path("/runs") / os.environ["BIREME_NAME"] / str(world.rank)
for step in range(int(saved.read_text()) if saved.exists() else 0, int(sys.argv[1])):
    if world.allreduce(len(told)):
        saved.parent.mkdir(exist_ok=True)
        new = saved.with_suffix(".new")
        new.write_text(str(step))
        new.replace(saved)
        time.sleep(2)
        os._exit(1)
    if world.rank == 0:
        print(f"step {step} of {world.size} ranks", flush=True)
    time.sleep(0.2)
"""
# Kills all processes of the container but the first, half a second after this command has returned.
KILL_ALL = "(sleep 0.5; exec python3 -c 'import os; os.kill(-1, 9)') >/dev/null 2>&1 </dev/null &"

Run = Callable[..., InstalledRelease]


@pytest.fixture(scope="module")
def load_once(load: Callable[..., None]) -> Callable[[str], None]:
    return functools.cache(load)


@pytest.fixture
def run(request: pytest.FixtureRequest, load_once: Callable[[str], None], release: ReleaseFactory) -> Run:
    """``run("MPIJob", ["workers=2"], mpi="openmpi4")``: a job on kind, with the operator if it needs it."""

    def _run(orchestrator: str, sets: list[str], mpi: str = "openmpi5", **more: Any) -> InstalledRelease:
        if orchestrator == "MPIJob":
            request.getfixturevalue("mpi_operator")
        implementation, image = MPIS[mpi]
        load_once(image)
        own = [
            f"mpi.orchestrator={orchestrator}",
            f"mpi.implementation={implementation}",
            f"image.tag=0.1.0-{mpi}",
        ]
        options = {"instance": NODE_TYPE, "files": [KIND], "timeout": 180, **more}
        return release("mpi-training", sets=[*own, *sets], **options)

    return _run


@pytest.fixture
def steps(run: Run, shell: Shell, runs: Path) -> Run:
    """``steps("Job", 60, ["backoffLimit=3"])``: two ranks with 60 steps; returns after the first few."""

    def _steps(orchestrator: str, count: int, sets: list[str]) -> InstalledRelease:
        job = run(orchestrator, ["workers=2", *sets], values=program(count))
        until(lambda: "step 3 of 2 ranks" in log_of(shell, job), what="the first steps")
        return job

    return _steps


def program(count: int) -> dict[str, Any]:
    """Values of a job with ``count`` steps."""
    return {"script": STEPS, "args": [count], "claims": [{"claimName": "runs", "mountPath": "/runs"}]}


def log_of(shell: Shell, job: InstalledRelease) -> str:
    """The logs of all pods of the job, also of those that have ended."""
    return shell.logs(f"app.kubernetes.io/instance={job.name}", job.namespace)


def host(job: InstalledRelease, orchestrator: str, index: int) -> str:
    """A worker's host name."""
    return f"{job.name}-r1-{'worker-' if orchestrator == 'MPIJob' else ''}{index}"


def end(job: InstalledRelease, orchestrator: str, seconds: float) -> tuple[str, str]:
    """Wait for the end of the job; returns its condition and message."""
    found: dict[str, str] = {}

    def ended() -> bool:
        status = job.cluster.api.get(PATHS[orchestrator].format(job.namespace, job.name)).get("status", {})
        for each in status.get("conditions", []):
            if each["status"] == "True" and each["type"] in (*WELL, "Failed"):
                found[each["type"]] = str(each.get("message"))
        return bool(found)

    until(ended, seconds, "the job to end")
    ((how, message),) = found.items()
    return how, message


def kill(shell: Shell, job: InstalledRelease, hostname: str) -> None:
    """SIGKILL all processes of a worker, so that its container fails."""
    (pod,) = [pod.name for pod in job.pods() if pod.hostname == hostname and pod.is_live]
    shell.kubectl("exec", "-n", job.namespace, pod, "--", "sh", "-c", KILL_ALL)


def started(shell: Shell, job: InstalledRelease, hostname: str) -> str:
    """When the container of an MPIJob's worker started, by the event, because the pod itself is gone."""
    selector = f"reason=Started,involvedObject.name={hostname}"
    command = ["get", "events", "-n", job.namespace, "--field-selector", selector, "-o", "json"]
    (event,) = json.loads(shell.kubectl(*command))["items"]
    return str(event["firstTimestamp"])


@pytest.mark.parametrize(("orchestrator", "user", "mpi"), COMBINATIONS)
def test_ranks_on_all_workers_add_up(
    request: pytest.FixtureRequest, run: Run, shell: Shell, orchestrator: str, user: str, mpi: str
) -> None:
    if user == "root":
        request.getfixturevalue("root_may_run")
    # Two slots per worker need workers without accelerators: a node has only one.
    sets = ["workers=2", "accelerators=0", "mpi.slots=2", "mpi.np=4"]
    files = [*([AS_ROOT] if user == "root" else []), KIND]
    values = {"tolerations": [{"operator": "Exists"}]}
    job = run(orchestrator, sets, mpi, files=files, values=values)
    assert end(job, orchestrator, 300)[0] in WELL, log_of(shell, job)
    found = sorted(re.findall(r"rank (\d) of 4 on (\S+): all-reduce agrees", log_of(shell, job)))
    assert found == [(str(rank), host(job, orchestrator, rank // 2)) for rank in range(4)]
    job.until(lambda: not [pod for pod in job.pods() if pod.is_live] and job.differences() == ())
    if orchestrator == "Job":
        (launcher,) = [pod for pod in job.pods() if pod.phase == "Succeeded"]
        assert launcher.slot == host(job, orchestrator, 0)
    else:
        job.until(lambda: [pod.role for pod in job.pods()] == ["launcher"])
        (launcher,) = job.pods()
        assert launcher.phase == "Succeeded"
        assert launcher.created >= max(started(shell, job, host(job, orchestrator, i)) for i in (0, 1))


@pytest.mark.whole
@EACH_ORCHESTRATOR
def test_a_run_that_loses_a_worker_is_made_again(steps: Run, shell: Shell, orchestrator: str) -> None:
    job = steps(orchestrator, 300, ["recovery.backoffLimit=3"])
    kill(shell, job, host(job, orchestrator, 1))
    how, _ = end(job, orchestrator, 400)
    log = log_of(shell, job)
    assert how in WELL, log
    assert re.search(rf"{host(job, orchestrator, 1)}\S* went away while the program ran", log), log
    assert len(re.findall("2 ranks on 2 workers", log)) == 2, log
    assert "step 299 of 2 ranks" in log


@pytest.mark.whole
@EACH_ORCHESTRATOR
def test_without_a_retry_left_a_lost_worker_fails_the_job_and_can_be_told(
    steps: Run, shell: Shell, orchestrator: str
) -> None:
    job = steps(orchestrator, 3000, ["recovery.backoffLimit=0"])
    lost = host(job, orchestrator, 1)
    kill(shell, job, lost)
    how, message = end(job, orchestrator, 120)
    assert (how, "backoff limit" in message) == ("Failed", True)
    if orchestrator == "Job":
        assert lost in [pod.hostname for pod in job.pods() if pod.phase == "Failed"]
    else:
        assert re.search(rf"{lost}\S* went away while the program ran", log_of(shell, job))


@pytest.mark.whole
@EACH_ORCHESTRATOR
def test_a_world_that_is_not_workers_times_slots_is_refused(
    run: Run, shell: Shell, orchestrator: str
) -> None:
    with pytest.raises(BiremeError, match="np: 3 is not workers × slots, which is 2 × 1 = 2"):
        run(orchestrator, ["workers=2", "mpi.np=3"])
    elsewhere = {"mpi": {"mpirunArgs": ["--oversubscribe", "--map-by", "ppr:2:node"]}}
    sets = ["workers=2", "recovery.backoffLimit=0"]
    job = run(orchestrator, sets, values=elsewhere, expect_differences=True)
    assert end(job, orchestrator, 90)[0] == "Failed"
    words = f"mpirun would start these ranks: 2 on {host(job, orchestrator, 0)}, in a world of 2"
    assert words in log_of(shell, job)


@pytest.mark.whole
@EACH_ORCHESTRATOR
def test_ranks_save_when_a_job_is_suspended_and_go_on_when_it_is_resumed(
    steps: Run, shell: Shell, runs: Path, orchestrator: str
) -> None:
    job = steps(orchestrator, 300, [])
    options: dict[str, Any] = {"instance": NODE_TYPE, "files": [KIND], "values": program(300)}
    own = [f"mpi.orchestrator={orchestrator}", "image.tag=0.1.0-openmpi5", "workers=2"]
    job.upgrade(sets=[*own, "job.suspend=true"], **options)
    until(lambda: len(list((runs / job.name).glob("[01]"))) == 2, what="both ranks to save")
    job.until(lambda: not [pod for pod in job.pods() if pod.is_live])
    first, second = (int((runs / job.name / rank).read_text()) for rank in ("0", "1"))
    assert first == second > 3
    job.upgrade(sets=[*own, "job.suspend=false"], **options)
    assert end(job, orchestrator, 150)[0] in WELL, log_of(shell, job)
    made = [int(step) for step in re.findall(r"step (\d+) of 2 ranks", log_of(shell, job))]
    assert made == list(range(first, 300))
