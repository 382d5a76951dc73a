"""Training survives frozen processes and pods, cut networks, too little memory and a bad node, but no bug."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations

import pytest

from bireme.clusters.kind import KindCluster
from tests.kind.shell import until
from tests.kind.training import ANYWHERE, Training, outcome

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("torch_images")]

# A module that Python imports at its start; ``fault`` runs in a thread of the training process.
AT_START = """mkdir -p /tmp/site && cat > /tmp/site/sitecustomize.py <<'END'
import os, pathlib, signal, sys, threading, time
def fault():
{fault}
if sys.argv[:1] and "RANK" in os.environ:
    threading.Thread(target=fault, daemon=True).start()
END
"""


def with_fault(*lines: str) -> dict[str, object]:
    """Values by which these lines run in a thread of each training process, from its start on."""
    fault = "\n".join(f"    {line}" for line in lines)
    return {"launch": {"setup": AT_START.format(fault=fault)}, "env": {"PYTHONPATH": "/tmp/site"}}


# Sends a signal to the processes of the container with this first process, or only to those that train.
SIGNAL = """for each in /proc/[0-9]*; do
    [ "$(readlink $each/ns/pid)" = "$(readlink /proc/{first}/ns/pid)" ] || continue
    {every} || tr '\\0' '\\n' < $each/environ | grep -q ^RANK= || continue
    kill -{signal} ${{each#/proc/}} && echo ${{each#/proc/}}
done; true"""


@contextmanager
def stopped(training: Training, index: int, every: bool) -> Iterator[None]:
    """SIGSTOP all processes of a worker's container, or only those that train, from its node."""
    pod = training.worker(index).name
    node, first = training.shell.first_process(training.job.namespace, pod, "trainer")

    def send(signal: str) -> str:
        script = SIGNAL.format(first=first, every=str(every).lower(), signal=signal)
        return training.shell.cluster.on_node(node, "bash", "-c", script)

    assert send("STOP")
    try:
        yield
    finally:
        send("CONT")


@contextmanager
def cut_off(cluster: KindCluster, training: Training, index: int, *others: int) -> Iterator[None]:
    """Drop all packets between a worker and these others, on its node."""
    here = training.worker(index)

    def address(pod: str) -> str:
        where = ("-n", training.job.namespace, "-o=jsonpath={.status.podIP}")
        return training.shell.kubectl("get", "pod", pod, *where)

    with ExitStack() as rules:
        for other in others:
            for one, two in permutations([address(here.name), address(training.worker(other).name)]):
                rule = ("FORWARD", "-s", one, "-d", two, "-j", "DROP")
                cluster.on_node(str(here.node), "iptables", "-I", *rule)
                rules.callback(cluster.on_node, str(here.node), "iptables", "-D", *rule)
        yield


def test_a_frozen_process_hangs_nobody_and_a_frozen_pod_comes_back(train: Callable[..., Training]) -> None:
    training = train(workers=3, values={"recovery": {"hang": {"seconds": 15, "firstStepSeconds": 120}}})
    training.until_trained(30, world_size=3)
    with stopped(training, 1, every=False):
        # Their stacks are printed, they are killed, and all start again.
        training.until_started(world_size=3, seconds=240)
    training.until_trained(20, world_size=3)
    with stopped(training, 2, every=True):
        training.until_trained(20, world_size=2, seconds=240)
    training.until_trained(20, world_size=3, seconds=240)
    training.complete(seconds=900)


@pytest.mark.parametrize("index", [0, 2])
def test_a_worker_cut_off_from_the_others_alone_stays_away_until_it_reaches_them(
    train: Callable[..., Training], cluster: KindCluster, index: int
) -> None:
    training = train(workers=3)
    training.until_trained(30, world_size=3)
    others = [each for each in range(3) if each != index]
    with cut_off(cluster, training, index, *others):
        training.until_trained(40, world_size=2, seconds=240)
    training.until_trained(20, world_size=3, seconds=240)
    training.complete(seconds=900)


def test_a_process_that_the_kernel_kills_for_its_memory_is_replaced(train: Callable[..., Training]) -> None:
    fault = with_fault(
        "if os.environ['RANK'] != '1' or os.path.exists('/tmp/was-killed'):",
        "    return",
        "time.sleep(20)",
        "pathlib.Path('/tmp/was-killed').touch()",
        "hog = []",
        "while True:",
        "    hog.append(bytearray(os.urandom(1 << 20) * 16))",
    )
    limits = {"resources": {"limits": {"memory": "1Gi"}}}
    training = train(workers=3, values={**ANYWHERE, **fault, **limits})
    training.until_trained(30, world_size=3)
    until(lambda: len(training.worlds()) > 1, 180, "processes to start again after one was killed")
    training.complete(seconds=900)
    assert "signal 9" in "\n".join(training.output) or len(training.pods) > 3


def test_a_bad_node_costs_its_worker_and_not_the_job(train: Callable[..., Training]) -> None:
    # Node and worker are one here, so that its replacement finds the node bad too.
    fault = with_fault(
        "if os.environ['JOB_COMPLETION_INDEX'] == '2':",
        "    time.sleep(8)",
        "    print('RuntimeError: CUDA error: uncorrectable ECC error encountered', flush=True)",
        "    os._exit(1)",
    )
    training = train(workers=3, values={**fault, "recovery": {"failuresWithoutProgress": 2}})
    words = "without a new step, all of them on"
    until(lambda: any(words in line for line in training.output), 900, "the bad worker to be left out")
    training.complete(seconds=900)


def test_a_deterministic_bug_ends_the_job_within_minutes_with_its_traceback(
    train: Callable[..., Training],
) -> None:
    fault = with_fault(
        "while 'torch' not in sys.modules: time.sleep(1)",
        "time.sleep(5)",
        "print('Traceback (most recent call last):\\nValueError: the shape is wrong', flush=True)",
        "os._exit(1)",
    )
    began = time.monotonic()
    training = train(workers=3, values={**fault, "recovery": {"failuresWithoutProgress": 3}})
    until(lambda: outcome(training.job) == "Failed", 600, "the job to fail")
    print(f"the job failed after {time.monotonic() - began:.0f} s")
    last_words = [pod.last_words for pod in training.job.pods()]
    assert any("ValueError: the shape is wrong" in words for words in last_words), last_words
