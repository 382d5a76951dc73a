"""How a run has ended is told to a web hook: once, within seconds, and without a word about its address."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from unittest import mock

import pytest

from bireme_runtime.process.webhook import tell
from tests.runtime.etcd_servers import free_port
from tests.runtime.web_hook import RUN, WebHook
from tests.runtime.workers import Start


def first() -> bool:
    return True


def test_slack_gets_a_sentence_and_others_the_facts(hook: WebHook) -> None:
    tell(hook.environment(), 70, "step <4> of rank 2 failed", first)
    tell(hook.environment(), 0, "", first)
    tell(hook.environment(format="slack"), 70, "step <4> of rank 2 failed", first)
    tell(hook.environment(format="slack"), 0, "", first)
    failed = {"outcome": "failed", "exitCode": 70, "reason": "step <4> of rank 2 failed"}
    assert hook.messages == [
        RUN | failed,
        RUN | {"outcome": "succeeded"},
        {"text": "Run 2 of night in ml has failed: step &lt;4&gt; of rank 2 failed"},
        {"text": "Run 2 of night in ml has succeeded"},
    ]


@pytest.mark.parametrize(
    ("code", "failed", "is_told"),
    [
        pytest.param(1, 2, False, id="another start follows"),
        pytest.param(1, 3, True, id="the last start"),
        pytest.param(78, 0, True, id="no start helps"),
        pytest.param(143, 3, False, id="stopped"),
        pytest.param(69, 3, False, id="a start that does not count"),
    ],
)
def test_a_pod_tells_only_of_an_end_that_is_the_runs(
    hook: WebHook, code: int, failed: int, is_told: bool
) -> None:
    tell(hook.environment(failed, starts=3), code, "", first)
    assert len(hook.messages) == is_told


def test_without_a_web_hook_and_when_another_pod_has_told_nothing_is_sent(hook: WebHook) -> None:
    tell({}, 0, "", first)
    tell(hook.environment(), 0, "", lambda: False)
    assert hook.messages == []


@pytest.mark.parametrize("status", [500, 0])
def test_an_endpoint_that_refuses_or_never_answers_costs_seconds_and_names_no_address(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], status: int
) -> None:
    hook, begun = WebHook(tmp_path, status), time.monotonic()
    tell(hook.environment(), 0, "", first)
    hook.stop()
    said = capfd.readouterr().err
    assert time.monotonic() - begun < 55
    assert ("the web hook answers" if status else "the web hook was not told: ") in said
    assert hook.secret not in said


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9/T0-x", "T0-x", "http://no-host.invalid/T0-x", "http://a b/T0-x"]
)
def test_a_dead_endpoint_or_none_names_no_address(
    hook: WebHook, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    if "invalid" in address:
        # The machine's own resolver may take as long as it likes.
        unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        monkeypatch.setattr(socket, "getaddrinfo", mock.Mock(side_effect=unknown))
    hook.url.write_text(address)
    tell(hook.environment(), 0, "", first)
    said = capfd.readouterr().err
    assert "the web hook was not told: " in said
    assert "T0-x" not in said


def test_of_two_workers_that_end_a_run_one_tells_of_its_success(
    start: Start, on_etcd: dict[str, str], hook: WebHook
) -> None:
    env = {**on_etcd, **hook.environment(), "PET_NNODES": "2:2"}
    workers = [start("", **env, JOB_COMPLETION_INDEX=str(index)) for index in (0, 1)]
    assert [each.end() for each in workers] == [0, 0]
    assert start("", **env, JOB_COMPLETION_INDEX="0").end() == 0
    assert hook.messages == [RUN | {"outcome": "succeeded"}]
    assert all(hook.secret not in each.words for each in workers)


def test_a_worker_tells_why_the_run_has_failed(start: Start, hook: WebHook, on_etcd: dict[str, str]) -> None:
    worker = start("sys.exit(7)", **on_etcd, **hook.environment(4, starts=4))
    assert worker.end() == 1
    (message,) = hook.messages
    assert message["outcome"] == "failed"
    assert "the script failed for good" in message["reason"]


def test_a_worker_ends_as_ever_when_the_endpoint_is_dead(start: Start, hook: WebHook) -> None:
    hook.url.write_text(f"http://127.0.0.1:{free_port()}/{hook.secret}\n")
    worker = start("", **hook.environment(), JOB_COMPLETION_INDEX="0")
    assert worker.end() == 0
    assert "the web hook was not told: " in worker.words
