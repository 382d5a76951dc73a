"""Training survives frozen processes and pods, and too little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.kind.shell import until
from tests.kind.training import ANYWHERE, Training

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
