"""What listens in pods that run, beside the table of ports in SECURITY.md."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.paddle import DYNAMIC, Jobs, PaddleJob
from tests.kind.shell import NODE_TYPE, Shell, Values, until
from tests.kind.test_paddle import COLLECTIVE
from tests.kind.training import ANYWHERE, Training
from tests.support.documents import ROOT

pytestmark = pytest.mark.whole

DISPATCHER = {
    "enabled": True,
    "image": {"registry": "", "repository": "bireme/python", "tag": "3.13"},
    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
}
# Of the kernel: 0A stands for a socket that listens.
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
# Processes of a job choose theirs from this range, where nothing else is asked for.
FIRST_OF_THEIR_OWN = 32768


def named() -> set[int]:
    """The ports of SECURITY.md: those of the table, and those that processes choose, below it."""
    text = (ROOT / "SECURITY.md").read_text()
    rows = re.findall(r"^\| (\d+) \S+ \|", text, re.MULTILINE)
    return {int(port) for port in [*rows, *re.findall(r"\b\d{4,5}\b", text.partition("Beside these")[2])]}


def listening(shell: Shell, job: InstalledRelease) -> dict[str, set[int]]:
    """The ports below the range of chosen ones on which the containers of each pod listen."""
    found: dict[str, set[int]] = {}
    for pod in job.objects("pods"):
        if pod["status"]["phase"] != "Running":
            continue
        name = pod["metadata"]["name"]
        # All containers of a pod share its sockets. An image may have no cat.
        said = [
            shell.attempt("-n", job.namespace, "exec", name, "-c", each["name"], "--", "cat", *TABLES)
            for each in pod["spec"]["containers"]
        ]
        # One that starts or ends answers nothing.
        text = next(filter(None, said), "")
        ports = {int(port, 16) for port in re.findall(r"^ *\d+: \w+:(\w{4}) \S+ 0A ", text, re.MULTILINE)}
        found[name] = {port for port in ports if port < FIRST_OF_THEIR_OWN}
    return found


def assert_known(shell: Shell, job: InstalledRelease, *expected: int) -> None:
    """All of these ports are open in the pods of the release, and none that the table does not name."""
    until(
        lambda: set(expected) <= set().union(*listening(shell, job).values()), 180, f"{expected} to be open"
    )
    unknown = {pod: ports - named() for pod, ports in listening(shell, job).items()}
    assert not any(unknown.values()), unknown


@pytest.mark.usefixtures("etcd_images")
def test_a_member_of_etcd_listens_where_the_table_says(
    release: ReleaseFactory, shell: Shell, kind_values: Values
) -> None:
    etcd = release("etcd", values=kind_values["etcd"], timeout=180)
    assert_known(shell, etcd, 2379, 2380, 2381, 2382)


def test_mpi_pods_listen_where_the_table_says(
    release: ReleaseFactory, shell: Shell, load: Callable[..., None]
) -> None:
    load("mpi-5", "python")
    values = {"workers": 2, "args": ["sleep", "3600"]}
    job = release(
        "mpi-training", values=values, instance=NODE_TYPE, files=["values/kind-mpi.yaml"], timeout=180
    )
    assert_known(shell, job, 2222)


@pytest.mark.usefixtures("torch_images")
def test_pods_of_an_elastic_job_listen_where_the_table_says(
    train: Callable[..., Training], shell: Shell
) -> None:
    values = {
        **ANYWHERE,
        "monitoring": {"tensorboard": {"enabled": True, "logDir": "/runs"}},
        "data": {"dispatcher": DISPATCHER},
        "etcd": {"persistence": {"enabled": True, "whenDeleted": "Delete"}},
    }
    training = train(workers=2, values=values)
    training.until_trained(10, world_size=2)
    assert_known(shell, training.job, 2379, 2380, 2381, 2382, 6006, 7190, 9464)


def test_pservers_and_trainers_listen_where_the_table_says(paddle: Jobs, shell: Shell) -> None:
    job = paddle("--passes=1000", **DYNAMIC)
    until_begun(job)
    assert_known(shell, job.release, 2379, 2380, 2381, 2382, 7163, 7164, 7190)


def test_collective_workers_of_paddle_listen_where_the_table_says(paddle: Jobs, shell: Shell) -> None:
    arguments = ["/opt/bireme/collective.py", "--checkpoints=$(JOB_PATH)/$(JOB_NAME)/kept", "--passes=1000"]
    job = paddle(**COLLECTIVE, workers=2, args=arguments)
    until_begun(job)
    assert_known(shell, job.release, 7163)


def until_begun(job: PaddleJob) -> None:
    """Its processes have begun to train, so what they open is open."""
    job.until(lambda: bool(job.events("step") or job.events("pass")), 300, "the first step")
