"""The checks of `helm test`: one sentence and an exit code."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from bireme_runtime.etcd import check
from bireme_runtime.process import ports
from tests.runtime.etcd_servers import EtcdServer, free_port

Captured = pytest.CaptureFixture[str]
SOON = {"BIREME_WAIT_SECONDS": "0.3"}


def test_an_etcd_that_answers_is_reported(shared_etcd: EtcdServer, capsys: Captured) -> None:
    assert check.main([f"127.0.0.1:{free_port()},{shared_etcd.endpoint}"], {}) == 0
    assert f"at http://{shared_etcd.endpoint} answers, with a majority behind it" in capsys.readouterr().out


def test_an_etcd_that_does_not_answer_fails_the_check(capsys: Captured) -> None:
    assert check.main([f"127.0.0.1:{free_port()}"], SOON) == 1
    assert "etcd did not answer within" in capsys.readouterr().out


def test_unreachable_ports_are_reported(shared_etcd: EtcdServer, capsys: Captured) -> None:
    assert ports.main([shared_etcd.endpoint], {}) == 0
    assert capsys.readouterr().out == f"{shared_etcd.endpoint} can be reached\n"
    closed = f"127.0.0.1:{free_port()}"
    assert ports.main([shared_etcd.endpoint, closed], SOON) == 1
    assert f"{closed} cannot be reached" in capsys.readouterr().out


def test_ports_of_a_job_that_is_done_need_not_answer(tmp_path: Path, capsys: Captured) -> None:
    closed, done = f"127.0.0.1:{free_port()}", tmp_path / "done"
    assert ports.main([closed], {**SOON, "BIREME_DONE": str(done)}) == 1
    done.touch()
    assert ports.main([closed], {**SOON, "BIREME_DONE": str(done)}) == 0
    assert capsys.readouterr().out.endswith(f"the job is done: {done} exists\n")


@pytest.mark.parametrize("module", [check, ports])
def test_no_arguments_show_the_usage(module: ModuleType, capsys: Captured) -> None:
    assert module.main([], {}) == 64
    assert capsys.readouterr().out.startswith(f"usage: python3 -m {module.__name__} ")


@pytest.mark.parametrize(("module", "target"), [(check, "udp://a:1"), (ports, "a"), (ports, "a:b")])
def test_an_invalid_address_fails_the_check(module: ModuleType, target: str, capsys: Captured) -> None:
    assert module.main([target], SOON) == 1
    assert capsys.readouterr().out.startswith(f"{target!r} is not ")
