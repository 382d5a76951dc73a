"""Setting up etcd's users from a Secret, on real servers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bireme_runtime.elastic.rendezvous import rules
from bireme_runtime.elastic.rendezvous.membership import Identity, Rendezvous, new_base
from bireme_runtime.etcd import check
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process.errors import as_shell
from tests.runtime.etcd_servers import RUNTIME, EtcdServer, NewEtcd, free_port, set_up_users
from tests.support import waiting


@pytest.fixture
def server(new_etcd: NewEtcd) -> EtcdServer:
    return new_etcd().start()


@pytest.fixture
def secret(server: EtcdServer) -> dict[str, str]:
    return {
        "BIREME_ETCD_ENDPOINTS": server.endpoint, "BIREME_ETCD_ROOT_PASSWORD": "root-1",
        "BIREME_ETCD_USERNAME": "trainer", "BIREME_ETCD_PASSWORD": "one", "BIREME_ETCD_PREFIX": "/bireme/",
        "BIREME_WAIT_SECONDS": "60",
    }  # fmt: skip


def client(server: EtcdServer, username: str, password: str) -> etcd.Client:
    return etcd.Client(
        etcd.parse_endpoints(server.endpoint), etcd.Credentials(username, password), timeout=20
    )


def test_setting_up_users_turns_authentication_on_and_a_repetition_changes_nothing(
    server: EtcdServer, secret: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert set_up_users(secret)
    assert (
        "etcd now asks for users; trainer may read and write keys that start with /bireme/"
        in capsys.readouterr().err
    )
    trainer = client(server, "trainer", "one")
    trainer.put("/bireme/a", "1", trainer.lease_grant(60))
    assert set_up_users(secret)
    assert "etcd is up to date" in capsys.readouterr().err
    before = logins(server)
    trainer.put("/bireme/a", "2")
    assert logins(server) == before, "a repetition ends no login"
    with pytest.raises(etcd.AuthError, match="permission denied"):
        trainer.put("/other", "1")
    with pytest.raises(etcd.AuthError, match="user name is empty"):
        client(server, "", "").get("/bireme/a")


def test_a_user_without_permission_for_the_status_can_check_that_etcd_is_up(
    server: EtcdServer, secret: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert set_up_users(secret)
    capsys.readouterr()
    assert check.main([server.endpoint], secret) == 0
    assert capsys.readouterr().out.startswith("etcd at http://127.0.0.1:")
    # It could be that the password has yet to be set up, so this is asked again for a while.
    lost = {**secret, "BIREME_ETCD_PASSWORD": "lost", "BIREME_WAIT_SECONDS": "1"}
    assert check.main([server.endpoint], lost) == 1


# The second login of this worker comes after 10 s, and the worker waits for 1 s.
BETWEEN_LOGINS = """
import random, sys
from bireme_runtime.elastic.agent import supervisor
random.uniform, supervisor._ETCD_SECONDS = lambda low, high: high, 0.2
sys.exit(supervisor.main(["--", sys.argv[1]]))
"""


def test_a_worker_whose_user_etcd_refuses_ends_with_77_also_between_two_logins(
    server: EtcdServer, secret: dict[str, str]
) -> None:
    assert set_up_users(secret)
    env = {**secret, "BIREME_ETCD_PASSWORD": "lost", "BIREME_WAIT_SECONDS": "1", "PYTHONPATH": str(RUNTIME)}
    env |= {"PET_RDZV_BACKEND": "bireme-etcd", "PET_RDZV_ENDPOINT": server.endpoint, "PET_RDZV_ID": "run"}
    command = [sys.executable, "-c", BETWEEN_LOGINS, __file__]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 77, done.stderr
    assert "etcd refuses the user: authentication failed" in done.stderr


def test_a_member_joins_a_protected_cluster_as_root(server: EtcdServer, secret: dict[str, str]) -> None:
    assert set_up_users(secret)
    root = client(server, "root", "root-1")
    assert len(root.members(by_majority=False)) == 1
    added = next(each for each in root.member_add("http://127.0.0.1:1") if not each.name)
    # One of two has no majority; only the list of members can still be read.
    assert added.id in {each.id for each in root.members(by_majority=False)}


def test_a_changed_password_and_prefix_are_applied_but_not_with_a_wrong_root_password(
    server: EtcdServer, secret: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert set_up_users(secret)
    changed = {**secret, "BIREME_ETCD_PASSWORD": "two", "BIREME_ETCD_PREFIX": "/jobs/"}
    assert not set_up_users({**changed, "BIREME_ETCD_ROOT_PASSWORD": "lost"})
    assert "put the first one back into the Secret" in capsys.readouterr().err
    assert client(server, "trainer", "one").get("/bireme/a") is None
    assert set_up_users(changed)
    trainer = client(server, "trainer", "two")
    trainer.put("/jobs/a", "1")
    with pytest.raises(etcd.AuthError, match="permission denied"):
        trainer.put("/bireme/a", "1")
    with pytest.raises(etcd.AuthError, match="authentication failed"):
        client(server, "trainer", "one").get("/jobs/a")


def test_releases_that_share_an_etcd_reach_their_own_keys_only(
    server: EtcdServer, secret: dict[str, str]
) -> None:
    """The Secret has a line for each release, and each release a Secret with its own user."""
    secret["BIREME_ETCD_RELEASES"] = "vision pass-1 /bireme/vision/\nspeech pass-2 /bireme/speech/"
    assert set_up_users(secret)
    vision, speech = client(server, "vision", "pass-1"), client(server, "speech", "pass-2")
    for each, prefix in ((vision, "/bireme/vision/"), (speech, "/bireme/speech/")):
        settings = rules.RunSettings("run", 1, 1, prefix, lock="ml/job", first_call_timeout=0)
        member = Rendezvous(each, settings, Identity(new_base("m0"), 0, "10.0.0.1"))
        assert member.join().size == 1
        member.leave()
    for key in ("/bireme/vision/run/round", "/bireme/a", "/bireme/vision/.lock/ml/job/run/x"):
        for request in (speech.get, speech.range, lambda key: speech.put(key, "")):
            with pytest.raises(etcd.AuthError, match="permission denied"):
                request(key)
    client(server, "trainer", "one").put("/bireme/a", "1")


def test_a_line_of_releases_that_is_not_whole_is_told_and_nothing_changes(
    server: EtcdServer, secret: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("vision", "vision pass-1", "vision pass-1 /a/ /b/"):
        assert not set_up_users({**secret, "BIREME_ETCD_RELEASES": line})
        assert "needs a user, a password and a prefix" in capsys.readouterr().err
        client(server, "", "").put("/anything", "1")


def test_an_interrupted_setup_is_completed(server: EtcdServer, secret: dict[str, str]) -> None:
    for path, body in (("user/add", {"name": "root", "password": "old"}), ("role/add", {"name": "trainer"})):
        server.request(f"/v3/auth/{path}", body)
    assert set_up_users(secret)
    client(server, "trainer", "one").put("/bireme/a", "1")
    assert len(client(server, "root", "root-1").auth("user/list", {})["users"]) == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"BIREME_ETCD_PASSWORD": ""}, "BIREME_ETCD_PASSWORD must not be empty: fill the Secret's keys"),
        ({"BIREME_ETCD_USERNAME": "root"}, "the user cannot be root"),
        ({"BIREME_ETCD_ENDPOINTS": ""}, "needs at least one endpoint"),
        ({"BIREME_ETCD_ENDPOINTS": "127.0.0.1:1", "BIREME_WAIT_SECONDS": "0.5"}, "cannot be reached"),
    ],
)
def test_an_unusable_setting_is_reported_in_one_sentence(
    change: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {"BIREME_ETCD_ENDPOINTS": f"127.0.0.1:{free_port()}", "BIREME_ETCD_ROOT_PASSWORD": "r",
           "BIREME_ETCD_USERNAME": "u", "BIREME_ETCD_PASSWORD": "p"}  # fmt: skip
    assert not set_up_users({**env, **change})
    assert sentence in capsys.readouterr().err


def logins(server: EtcdServer) -> int:
    """How often somebody has logged in, by etcd's own counter."""
    with urllib.request.urlopen(f"http://{server.endpoint}/metrics", timeout=30) as answer:
        name = r'grpc_server_started_total\{grpc_method="Authenticate",.* (\d+)'
        return int(re.findall(name, answer.read().decode())[0])


def test_the_clients_of_a_pod_share_one_login_also_after_a_restart_of_etcd(
    server: EtcdServer, secret: dict[str, str], tmp_path: Path
) -> None:
    assert set_up_users(secret)
    env = {**secret, etcd.LOGIN_FILE: str(tmp_path / "login")}
    clients = [etcd.client_from(server.endpoint, env, timeout=60) for _ in range(5)]
    before = logins(server)
    for each in clients:
        each.put("/bireme/a", "1")
    assert logins(server) - before == 1
    server.stop()
    server.start()
    for each in clients:
        waiting.until(lambda each=each: succeeds(partial(each.put, "/bireme/a", "2")))  # type: ignore[misc]
    assert logins(server) <= 1, "the login may have outlived the restart"


def succeeds(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except etcd.Unavailable:
        return False
    return True


@pytest.mark.parametrize(("env", "seconds"), [({}, 30.0), ({"BIREME_ETCD_LOGIN_MS": "3"}, 3.0)])
def test_first_logins_are_spread_over_what_they_cost_etcd(env: dict[str, str], seconds: float) -> None:
    client = etcd.client_from("etcd:2379", env)
    assert (client.expect(1), client.expect(1000)) == (0.0, seconds)


def test_a_client_logs_in_again_where_etcd_has_lost_its_data(
    server: EtcdServer, secret: dict[str, str], new_etcd: NewEtcd
) -> None:
    assert set_up_users(secret)
    filler = client(server, "trainer", "one")
    for number in range(50):
        filler.put("/bireme/filler", str(number))
    # This login is of a later point of the log than the next etcd will have reached.
    late = etcd.Client(etcd.parse_endpoints(server.endpoint), etcd.Credentials("trainer", "one"), timeout=8)
    late.put("/bireme/a", "1")
    server.stop()
    new_etcd(port=server.port, peer_port=server.peer_port).start()
    assert set_up_users(secret)
    waiting.until(lambda: succeeds(lambda: late.get("/bireme/a")))
    assert late.txn([], [etcd.put_op("/bireme/a", "2")]).succeeded


@contextlib.contextmanager
def kept_up(secret: dict[str, str], folder: Path) -> Iterator[str]:
    """The container that keeps the users of a Secret in that folder; its address for the readiness probe."""
    folder.mkdir(exist_ok=True)
    write(folder, secret["BIREME_ETCD_PASSWORD"])
    port = free_port()
    env = {**os.environ, "PYTHONPATH": str(RUNTIME), "BIREME_ETCD_USERS": str(folder)}
    env |= {"BIREME_ETCD_USERS_PORT": str(port), "BIREME_WAIT_SECONDS": "60"}
    env |= {name: secret[name] for name in ("BIREME_ETCD_ENDPOINTS", "BIREME_ETCD_PREFIX")}
    process = subprocess.Popen([sys.executable, "-m", "bireme_runtime.etcd.server.auth"], env=env)
    try:
        yield f"http://127.0.0.1:{port}/"
        # As process 1 it ends only if it handles the signal: its code is an exit's, not the signal's.
        process.terminate()
        assert process.wait(timeout=30) == as_shell(-signal.SIGTERM)
    finally:
        process.kill()
        process.wait()


def write(folder: Path, password: str) -> None:
    people = {"root-password": "root-1", "username": "trainer", "password": password}
    for key, value in people.items():
        (folder / key).write_text(value)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def lets_in(server: EtcdServer, password: str) -> bool:
    try:
        client(server, "trainer", password).put("/bireme/a", "1")
    except etcd.EtcdError:
        return False
    return True


def test_the_container_at_a_member_follows_the_secret_and_a_new_one_an_empty_etcd(
    server: EtcdServer, secret: dict[str, str], new_etcd: NewEtcd, tmp_path: Path
) -> None:
    with kept_up(secret, tmp_path / "users") as probe:
        waiting.until(lambda: is_ready(probe))
        with pytest.raises(etcd.AuthError, match="user name is empty"):
            client(server, "", "").get("/bireme/a")
        assert lets_in(server, "one")
        write(tmp_path / "users", "two")
        waiting.until(lambda: lets_in(server, "two"))
    server.stop()
    new_etcd(port=server.port, peer_port=server.peer_port).start()
    assert client(server, "", "").get("/bireme/a") is None, "it has lost its users"
    with kept_up(secret, tmp_path / "users") as probe:
        waiting.until(lambda: is_ready(probe))
        assert lets_in(server, "one")
        assert not lets_in(server, "")


def test_members_that_start_together_make_the_users_together(
    server: EtcdServer, secret: dict[str, str], tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(kept_up(secret, tmp_path / f"users-{i}")) for i in range(3)]
        for probe in probes:
            waiting.until(lambda probe=probe: is_ready(probe))  # type: ignore[misc]
        assert lets_in(server, "one")
