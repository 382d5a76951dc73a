"""How the launcher classifies the ends of torchrun. The classes have the names of torch's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bireme_runtime.elastic import launch, rendezvous, report


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
        (launch.DeviceMissing("Cuda is not available."), report.MACHINE, 1),
        (launch.ArgumentError("nproc"), report.CONFIG, 1),
        (rendezvous.ThreadEnded("a thread ended"), report.MACHINE, 1),
        (ValueError("somewhere"), report.AGENT, 1),
        (RuntimeError("store"), report.AGENT, 1),
    ],
)
def test_what_ended_torchrun_says_whether_the_script_or_the_agent_is_to_blame(
    error: Exception, cause: str, code: int
) -> None:
    assert launch.classify(error) == (cause, code)


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        ("Unsupported nproc_per_node value: x", launch.ArgumentError),
        ("Cuda is not available.", launch.DeviceMissing),
    ],
)
def test_what_torchrun_lacks_on_a_machine_is_no_wrong_argument(problem: str, kind: type[Exception]) -> None:
    def config_from_args(arguments: list[str]) -> None:
        raise ValueError(problem)

    torchrun = SimpleNamespace(parse_args=list, config_from_args=config_from_args)
    with pytest.raises(kind, match=problem):
        launch.check_arguments(torchrun, ["train.py"])
