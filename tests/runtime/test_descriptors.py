"""Processes with more than a thousand open files, as trainers with many data loaders have them."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator

import pytest

from bireme_runtime.elastic.agent import report
from bireme_runtime.etcd import client as etcd

MANY = 1100


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * MANY), hard))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(MANY)]
    yield
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_etcd_is_asked_and_watched_beyond_the_thousandth_file(client: etcd.Client, prefix: str) -> None:
    client.put(prefix + "key", "one")
    # Over the connection that was kept.
    found = client.get(prefix + "key")
    assert found
    assert found.value == "one"
    for _, events in client.watch(prefix, found.mod_revision):
        if events:
            assert [event.kv.value for event in events] == ["one"]
            return


@pytest.mark.usefixtures("many_files")
def test_an_agent_is_answered_beyond_the_thousandth_file() -> None:
    (told, report_end), (answer_end, answers) = os.pipe(), os.pipe()
    assert answer_end > 1023
    agent = report.Reporter(str(report_end), str(answer_end))
    asking = threading.Thread(target=agent.failed, args=(1, 2, 0, 1))
    asking.start()
    assert b"failed" in os.read(told, 1000)
    os.write(answers, b".")
    asking.join(60)
    assert not asking.is_alive()
    for file in (told, report_end, answer_end, answers):
        os.close(file)
