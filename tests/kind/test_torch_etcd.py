"""Training continues when its etcd or the connection to it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bireme.clusters.kind import KindCluster
from tests.kind.shell import until
from tests.kind.training import ANYWHERE, Training

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("torch_images")]


def member(training: Training, ordinal: int = 0) -> str:
    return f"{training.job.name}-etcd-{ordinal}"


def replace_member(training: Training, ordinal: int = 0) -> None:
    """Delete the pod of an etcd member, and wait until the next one is Ready."""
    pod = member(training, ordinal)
    namespace, ready = training.job.namespace, training.shell.uid_when_ready
    before = ready(namespace, pod)
    assert before
    training.job.delete_pod(pod)
    until(lambda: ready(namespace, pod) not in ("", before), what=f"another {pod}")


def address(training: Training, pod: str) -> str:
    return training.shell.kubectl(
        "get", "pod", pod, "-n", training.job.namespace, "-o=jsonpath={.status.podIP}"
    )


@contextmanager
def cut_off(cluster: KindCluster, node: str, one: str, other: str) -> Iterator[None]:
    """Drop all packets between two pods, on the node of the first."""
    ways = [("-s", one, "-d", other), ("-s", other, "-d", one)]
    for way in ways:
        cluster.on_node(node, "iptables", "-I", "FORWARD", *way, "-j", "DROP")
    try:
        yield
    finally:
        for way in ways:
            cluster.on_node(node, "iptables", "-D", "FORWARD", *way, "-j", "DROP")


def test_etcd_dies_and_comes_back_empty_and_a_worker_is_cut_off_from_it(
    train: Callable[..., Training], cluster: KindCluster
) -> None:
    training = train(workers=3)
    training.until_trained(30, world_size=3)

    training.shell.kill_container(training.job.namespace, member(training), "etcd")
    training.until_trained(30, world_size=3)

    worker = training.worker(0)
    with cut_off(
        cluster, str(worker.node), address(training, worker.name), address(training, member(training))
    ):
        training.until_trained(20, world_size=2)
    training.until_trained(30, world_size=3)

    # Its data is in the pod, so it comes back empty but for users, and all workers agree on a new world.
    before = len(training.worlds())
    replace_member(training)
    users = training.shell.ask_etcd(training.job.namespace, member(training), "auth/user/list", {})["users"]
    assert set(users) == {"root", "bireme"}
    until(lambda: len(training.worlds()) > before, 300, "a new world")
    training.until_trained(30, world_size=3)
    training.complete()


def test_etcd_grows_to_three_members_while_training_and_loses_each_in_turn(
    train: Callable[..., Training],
) -> None:
    training = train(workers=2, values=ANYWHERE)
    training.until_trained(30, world_size=2)
    training.upgrade({"etcd": {"replicas": 3}})
    training.until_trained(30, world_size=2)
    # Until the second of two members has started there is no majority, which may outlast a lease.
    grown = len(training.worlds())
    assert grown <= 2
    for ordinal in range(3):
        replace_member(training, ordinal)
        training.until_trained(30, world_size=2)
    training.complete(seconds=600)
    told = "\n".join(line for line in training.output if not line.startswith("{"))
    assert len(training.worlds()) == grown, f"it has kept a majority: {training.worlds()}\n{told[-5000:]}"


# Prints a key of the job's etcd, and sets it first if a value is given.
ASK = """
import os, sys
from bireme_runtime.etcd import client as etcd
client = etcd.client_from(os.environ["PET_RDZV_ENDPOINT"], os.environ)
if sys.argv[2:]:
    client.txn([], [etcd.put_op(*sys.argv[1:])])
print(client.get(sys.argv[1]).value)
"""


def test_an_etcd_that_is_replaced_finds_its_data_on_its_claim(train: Callable[..., Training]) -> None:
    kept = {"enabled": True, "whenDeleted": "Delete"}
    training = train(workers=2, values={**ANYWHERE, "etcd": {"persistence": kept}})
    training.until_trained(30, world_size=2)
    ask = ("exec", "-n", training.job.namespace, training.worker(0).name, "--", "python3", "-c", ASK)
    assert training.shell.kubectl(*ask, "/note", "kept").strip() == "kept"
    replace_member(training)
    training.until_trained(30, world_size=2)
    assert training.shell.kubectl(*ask, "/note").strip() == "kept"
    training.complete(seconds=600)
