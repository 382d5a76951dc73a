"""The fence against a real etcd: who may commit a checkpoint, and who may not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.rendezvous import membership, rules
from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import RUNTIME, Proxy
from tests.support import waiting

Member = Callable[[], tuple[membership.Rendezvous, dict[str, str]]]


@pytest.fixture
def member(proxy: Proxy, prefix: str) -> Iterator[Member]:
    """Make a member in a world, and the environment of its training processes."""
    made: list[membership.Rendezvous] = []
    settings = rules.RunSettings(
        "a-run", 1, 4, prefix, join_timeout=120, last_call_timeout=0.1, settle_timeout=0,
        keep_alive_interval=0.3, keep_alive_max_attempt=1000,
    )  # fmt: skip

    def make() -> tuple[membership.Rendezvous, dict[str, str]]:
        client = etcd.Client(etcd.parse_endpoints(proxy.endpoint), timeout=10)
        identity = membership.Identity(membership.new_base("m"), 0, "10.0.0.1")
        made.append(membership.Rendezvous(client, settings, identity))
        token = made[-1].token(made[-1].join())
        return made[-1], {"PET_RDZV_ENDPOINT": proxy.endpoint, **token}

    yield make
    for each in made:
        each.leave()


def test_outside_a_round_there_is_no_fence() -> None:
    fence.check({})


def test_below_a_launcher_that_drops_torchruns_variables_etcd_is_asked_all_the_same(
    member: Member, client: etcd.Client
) -> None:
    _, env = member()
    below = {**env, **fence.kept(env)}
    del below["PET_RDZV_ENDPOINT"]
    fence.check(below)
    client.put(env["BIREME_ROUND_KEY"], rules.Round(2, ()).to_json())
    for each in (env, below):
        with pytest.raises(fence.Fenced, match="round 1 of this process is over: the newest is 2"):
            fence.check(each)


def test_a_process_that_does_not_know_where_etcd_is_may_not_commit(member: Member) -> None:
    _, env = member()
    del env["PET_RDZV_ENDPOINT"]
    with pytest.raises(fence.Fenced, match="says where etcd is"):
        fence.check(env)


def test_an_etcd_that_has_lost_the_round_lets_nobody_commit(member: Member, client: etcd.Client) -> None:
    _, env = member()
    client.txn([], [etcd.delete_op(env["BIREME_ROUND_KEY"])])
    with pytest.raises(fence.Fenced, match="the newest is 0"):
        fence.check(env)


def test_a_process_that_outlives_its_round_in_its_agent_may_not_commit(member: Member) -> None:
    agent, env = member()
    token = agent.token(agent.join())
    with pytest.raises(fence.Fenced, match="round 1 of this process is over: the newest is 2"):
        fence.check(env)
    agent.leave()
    with pytest.raises(fence.Fenced, match="this worker has left round 2"):
        fence.check({**env, **token})


def test_a_member_whose_lease_is_gone_may_not_commit(member: Member, client: etcd.Client) -> None:
    agent, env = member()
    (lease,) = membership.leases_of(client, agent.settings.root, agent.identity.base)
    client.lease_revoke(lease)
    waiting.until(agent.waiting, every=0.01)
    with pytest.raises(fence.Fenced, match="this worker has left round 1"):
        fence.check(env)


def test_without_etcd_a_member_may_commit_until_its_lease_may_have_ended(
    member: Member, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, env = member()
    proxy.mode = "refuse"
    proxy.cut()
    fence.check(env)
    # The lease has 300 s.
    now = fence.now
    monkeypatch.setattr(fence, "now", lambda: now() + 200)
    fence.check(env)
    monkeypatch.setattr(fence, "now", lambda: now() + 251)
    with pytest.raises(fence.Fenced, match="was not renewed in time"):
        fence.check(env)


def test_a_silent_dns_holds_a_check_up_no_longer_than_a_silent_etcd(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, env = member()
    asked, over = socket.getaddrinfo, threading.Event()

    def silent(host: str, *rest: Any, **more: Any) -> Any:
        if host == "etcd-of-a-silent-dns":
            over.wait(60)
        return asked(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    began = time.monotonic()
    fence.check({**env, "PET_RDZV_ENDPOINT": "etcd-of-a-silent-dns:2379"})
    assert time.monotonic() - began < 55
    over.set()


def test_another_process_checks_with_one_command_and_gets_one_sentence(member: Member) -> None:
    agent, env = member()
    assert (env["BIREME_RUN"], env["BIREME_ROUND"]) == ("a-run", "1")

    def command() -> tuple[int, str]:
        environ = {**os.environ, **env, "PYTHONPATH": str(RUNTIME)}
        command = [sys.executable, "-m", "bireme_runtime.elastic.fence"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert command() == (0, "")
    agent.join()
    sentence = "round 1 of this process is over: the newest is 2; nothing may be committed"
    assert command() == (1, f"bireme fence: {sentence}\n")


def test_when_the_supervisor_is_gone_nothing_may_be_committed(member: Member) -> None:
    _, env = member()
    with pytest.raises(fence.Fenced, match="the supervisor of this process is gone"):
        fence.check({**env, "BIREME_FENCE": "/proc/1/fd/99999"})
