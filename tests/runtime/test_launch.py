"""How the launcher classifies the ends of torchrun. The classes have the names of torch's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from bireme_runtime.elastic.agent import launch, report
from bireme_runtime.elastic.rendezvous import membership
from bireme_runtime.process.errors import CONFIG, TEMPORARY, SettingError, Stop, Unreachable
from tests.runtime.etcd_servers import RUNTIME


class RendezvousError(Exception):
    pass


class RendezvousTimeoutError(RendezvousError):
    pass


class ChildFailedError(Exception):
    def __init__(self, exitcode: int) -> None:
        super().__init__("train.py FAILED")
        self.exitcode = exitcode

    def get_first_failure(self) -> tuple[int, SimpleNamespace]:
        return 0, SimpleNamespace(exitcode=self.exitcode)


@pytest.mark.parametrize(
    ("error", "cause", "code"),
    [
        (ChildFailedError(42), report.SCRIPT, 42),
        (ChildFailedError(-9), report.SCRIPT, 137),
        (ChildFailedError(3221225477), report.SCRIPT, 1),
        (RendezvousTimeoutError("late"), report.RENDEZVOUS, 1),
        (ModuleNotFoundError("No module named 'torch'"), report.CONFIG, 1),
        (ImportError("libcudart.so.12: cannot open shared object file"), report.MACHINE, 1),
        (Stop(TEMPORARY, "Cuda is not available."), report.MACHINE, 1),
        (Stop(CONFIG, "nproc"), report.CONFIG, 1),
        (SettingError("BIREME_SPARES=x is not a whole number"), report.CONFIG, 1),
        (Unreachable("the store does not answer"), report.RENDEZVOUS, 1),
        (membership.ThreadEnded("a thread ended"), report.MACHINE, 1),
        (ValueError("somewhere"), report.AGENT, 1),
        (RuntimeError("store"), report.AGENT, 1),
    ],
)
def test_what_ended_torchrun_says_whether_the_script_or_the_agent_is_to_blame(
    error: Exception, cause: str, code: int
) -> None:
    assert launch.classify(error) == (cause, code)


@pytest.mark.parametrize("version", ["1.13.1", "2.0.1+cu117"])
def test_an_old_torch_is_named_in_a_sentence(version: str) -> None:
    advice = f"has torch {re.escape(version)}.*set launch.runtime=false"
    with pytest.raises(Stop, match=advice):
        launch.check_release(version)
    for known in ("2.1.0", "2.10.0+cu128", "3.0.0a0+git12ab"):
        launch.check_release(known)


def test_an_old_python_is_named_in_a_sentence() -> None:
    as_in_an_old_image = (
        "import sys; sys.version_info = (3, 8, 10); import bireme_runtime.elastic.agent.supervisor"
    )
    done = subprocess.run(
        [sys.executable, "-c", as_in_an_old_image],
        env={"PYTHONPATH": str(RUNTIME)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1
    assert "this image has Python 3.8, and bireme-runtime needs 3.9" in done.stderr


@pytest.mark.parametrize(
    ("problem", "code"),
    [("Unsupported nproc_per_node value: x", CONFIG), ("Cuda is not available.", TEMPORARY)],
)
def test_what_torchrun_lacks_on_a_machine_is_no_wrong_argument(problem: str, code: int) -> None:
    def config_from_args(arguments: list[str]) -> None:
        raise ValueError(problem)

    torchrun = SimpleNamespace(parse_args=list, config_from_args=config_from_args)
    with pytest.raises(Stop, match=problem) as refusal:
        launch.check_arguments(torchrun, ["train.py"])
    assert refusal.value.code == code


def test_what_the_supervisor_fails_to_note_keeps_no_agent_waiting(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_ANSWER_SECONDS", 600.0)

    def fail(facts: object) -> bytes:
        raise OSError("read-only file system")

    listener = report.Listener(starting=lambda facts: None, started=lambda facts: None, failed=fail)
    # A process of its own would have its own ends.
    ends = [os.dup(int(each)) for each in listener.environment.values()]
    listener.started()
    reporter = report.Reporter(*map(str, ends))
    before = time.monotonic()
    assert reporter.failed(1, 2, 0, 1) is False
    assert time.monotonic() - before < 300, "it waits 600 s without an answer"
    reporter.ended("script", 1, "")
    os.close(ends[0])
    assert listener.end() == {"cause": "script", "code": 1, "error": ""}
    assert "was not carried out: OSError('read-only file system')" in capfd.readouterr().err
