"""mpirun over ssh across pods: with and without the operator, as user and as root, Open MPI 4 and 5."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
from on_kind import NODE_TYPE, Shell, eventually

from bireme.clusters.kind_cluster import KindCluster
from bireme.errors import BiremeError
from bireme.pytest_plugin import InstalledRelease, ReleaseFactory

KIND = "values/kind-mpi.yaml"
AS_ROOT = "values/mpi-as-root.yaml"
TAGS = {4: "0.1.0-openmpi4", 5: "0.1.0-openmpi5"}
# Every two of the three properties meet in these four; the other four show it all.
CORE = {("Job", False, 5), ("Job", True, 4), ("MPIJob", False, 4), ("MPIJob", True, 5)}
COMBINATIONS = [
    pytest.param(*each, marks=() if each in CORE else pytest.mark.whole)
    for each in itertools.product(("Job", "MPIJob"), (False, True), (4, 5))
]

# All ranks meet in every step, and rank 0 says how far they are. Told to end, each leaves a file.
STEPS = """
import os, pathlib, signal, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
for step in range(int(sys.argv[1])):
    assert world.allreduce(1) == world.size
    if world.rank == 0:
        print(f"step {step} of {world.size} ranks", flush=True)
    time.sleep(0.2)
    if told:
        time.sleep(2)
        pathlib.Path("/runs", f"saved-{world.rank}").write_text(str(step))
        os._exit(1)
"""
# All processes of the container but the first, which the kernel protects; once this command has returned.
KILL_ALL = "(sleep 0.5; exec python3 -c 'import os; os.kill(-1, 9)') >/dev/null 2>&1 </dev/null &"


@pytest.fixture(scope="module")
def test_namespace(random_namespace: Any) -> str:
    """No policy of admission here, because half of these jobs run as root; the others say in their pods what
    they do without."""
    name: str = random_namespace.name
    return name


@pytest.fixture(scope="module", autouse=True)
def images(load: Callable[..., None]) -> None:
    load("mpi-4", "mpi-5")


@pytest.fixture
def run(release: ReleaseFactory) -> Callable[..., InstalledRelease]:
    """``run(["workers=2"], open_mpi=5)``: an MPI job on kind's nodes."""

    def _run(sets: list[str], open_mpi: int = 5, as_root: bool = False, **said: Any) -> InstalledRelease:
        files = [*([AS_ROOT] if as_root else []), KIND]
        tag = f"image.tag={TAGS[open_mpi]}"
        options = {"instance": NODE_TYPE, "timeout": 180, **said}
        return release("mpi-training", files=files, sets=[tag, *sets], **options)

    return _run


def conditions(job: InstalledRelease) -> dict[str, str]:
    """The conditions of the Job that hold, with their messages."""
    (found,) = [each for each in job.objects("jobs") if "launcher" not in each["metadata"]["name"]]
    return {
        each["type"]: str(each.get("message"))
        for each in found.get("status", {}).get("conditions", [])
        if each["status"] == "True"
    }


def until_ended(job: InstalledRelease, seconds: float) -> dict[str, str]:
    """Wait for the end of the Job; its conditions."""
    eventually(lambda: bool({"Complete", "Failed"} & conditions(job).keys()), seconds, "the job to end")
    return conditions(job)


def said_by(shell: Shell, job: InstalledRelease) -> str:
    return shell.logs(f"app.kubernetes.io/instance={job.name}", job.namespace)


def worker(job: InstalledRelease, index: int) -> str:
    """The live pod of a worker."""
    names = {f"{job.name}-r1-{index}", f"{job.name}-r1-worker-{index}"}
    return next(pod.name for pod in job.pods() if pod.hostname in names and pod.is_live)


def kill(shell: Shell, job: InstalledRelease, index: int) -> None:
    """SIGKILL all that runs in a worker, whose pod then fails."""
    shell.kubectl("exec", "-n", job.namespace, worker(job, index), "--", "sh", "-c", KILL_ALL)


@pytest.fixture
def steps(run: Callable[..., InstalledRelease], shell: Shell) -> Callable[..., InstalledRelease]:
    """``steps(60, sets)``: a job that makes so many steps, once it has made some."""

    def _steps(count: int, sets: list[str], **said: Any) -> InstalledRelease:
        values = {"script": STEPS, "args": [count], **said.pop("values", {})}
        job = run(["workers=2", *sets], values=values, **said)
        eventually(lambda: "step 3 of 2 ranks" in said_by(shell, job), 90, "the first steps")
        return job

    return _steps


@pytest.mark.parametrize(("orchestrator", "as_root", "open_mpi"), COMBINATIONS)
def test_ranks_on_all_workers_add_up(
    request: pytest.FixtureRequest,
    run: Callable[..., InstalledRelease],
    shell: Shell,
    orchestrator: str,
    as_root: bool,
    open_mpi: int,
) -> None:
    if orchestrator == "MPIJob":
        request.getfixturevalue("mpi_operator")
    # Two slots on workers without an accelerator, which the nodes have one of.
    sets = [f"orchestrator={orchestrator}", "workers=2", "accelerators=0", "slots=2", "np=4"]
    job = run(sets, open_mpi, as_root, values={"tolerations": [{"operator": "Exists"}]})
    pattern = r"rank (\d) of 4 on (\S+): all-reduce agrees"
    eventually(lambda: len(re.findall(pattern, said_by(shell, job))) == 4, 90, "four ranks that agree")
    first, second = (f"{job.name}-r1{'-worker' if orchestrator == 'MPIJob' else ''}-{i}" for i in (0, 1))
    found = sorted(re.findall(pattern, said_by(shell, job)))
    assert found == [("0", first), ("1", first), ("2", second), ("3", second)]
    job.until(lambda: not [pod for pod in job.pods() if pod.is_live] and job.differences() == ())
    (launcher,) = [pod for pod in job.pods() if pod.phase == "Succeeded"]
    assert ("launcher" in launcher.name) == (orchestrator == "MPIJob")


def test_a_run_that_loses_a_worker_is_made_again(
    steps: Callable[..., InstalledRelease], shell: Shell
) -> None:
    job = steps(60, ["backoffLimit=3"])
    kill(shell, job, 1)
    assert "Complete" in until_ended(job, 150)
    said = said_by(shell, job)
    assert f"{job.name}-r1-1.{job.name} went away while the program ran" in said
    assert len(re.findall("2 ranks on 2 workers", said)) == 2, said


def test_without_a_retry_left_a_lost_worker_fails_the_job_and_is_named(
    steps: Callable[..., InstalledRelease], shell: Shell
) -> None:
    job = steps(3000, ["backoffLimit=0"], open_mpi=4)
    eventually(lambda: "2 ranks on 2 workers" in said_by(shell, job), 30, "the launcher's word")
    kill(shell, job, 1)
    assert "backoff limit" in until_ended(job, 60)["Failed"]


def test_a_world_that_is_not_workers_times_slots_is_refused(
    run: Callable[..., InstalledRelease], shell: Shell
) -> None:
    with pytest.raises(BiremeError, match="np: 3 is not workers × slots, which is 2 × 1 = 2"):
        run(["workers=2", "np=3"])
    elsewhere = {"mpirunArgs": ["--oversubscribe", "--map-by", "ppr:2:node"]}
    job = run(["workers=2"], values=elsewhere, expect_differences=True)
    assert "exit code 78" in until_ended(job, 60)["Failed"]
    assert f"mpirun would start these ranks: 2 on {job.name}-r1-0" in said_by(shell, job)


def test_helm_test_says_whether_the_image_has_what_it_takes(
    run: Callable[..., InstalledRelease], shell: Shell
) -> None:
    job = run(["workers=1", "args={true}"])
    shell.helm("test", job.name, "-n", job.namespace, "--timeout", "2m")


@pytest.mark.whole
def test_ranks_save_when_a_job_is_suspended_and_it_goes_on_when_resumed(
    steps: Callable[..., InstalledRelease], cluster: KindCluster, shell: Shell, test_namespace: str
) -> None:
    cluster.add_claim("runs", test_namespace)
    values = {"claims": [{"claimName": "runs", "mountPath": "/runs"}]}
    job = steps(100, [], values=values)
    again = {"values": {"script": STEPS, "args": [100], **values}, "files": [KIND], "instance": NODE_TYPE}
    job.upgrade(sets=["workers=2", "suspend=true"], **again)
    folder = cluster.claim_folder("runs", test_namespace)
    eventually(lambda: len(list(folder.glob("saved-*"))) == 2, 60, "both ranks to save")
    job.until(lambda: not [pod for pod in job.pods() if pod.is_live])
    job.upgrade(sets=["workers=2", "suspend=false"], **again)
    assert "Complete" in until_ended(job, 120)


@pytest.mark.whole
@pytest.mark.usefixtures("mpi_operator")
def test_an_mpi_job_that_loses_a_worker_starts_its_program_again(
    steps: Callable[..., InstalledRelease], shell: Shell
) -> None:
    job = steps(60, ["orchestrator=MPIJob", "backoffLimit=3"])
    kill(shell, job, 1)
    eventually(lambda: "step 59 of 2 ranks" in said_by(shell, job), 150, "the last step")
    assert f"{job.name}-r1-worker-1.{job.name}-r1 went away while the program ran" in said_by(shell, job)
