"""Setting up etcd's users from a Secret, on real servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bireme_runtime.etcd import check
from bireme_runtime.etcd import client as etcd
from bireme_runtime.etcd.server import auth
from tests.runtime.etcd_servers import EtcdServer, free_port

NewEtcd = Callable[..., EtcdServer]


@pytest.fixture
def server(new_etcd: NewEtcd) -> EtcdServer:
    return new_etcd().start()


@pytest.fixture
def secret(server: EtcdServer) -> dict[str, str]:
    return {
        "BIREME_ETCD_ENDPOINTS": server.endpoint, "BIREME_ETCD_ROOT_PASSWORD": "root-1",
        "BIREME_ETCD_USERNAME": "trainer", "BIREME_ETCD_PASSWORD": "one", "BIREME_ETCD_PREFIX": "/bireme/",
        "BIREME_WAIT_SECONDS": "5",
    }  # fmt: skip


def client(server: EtcdServer, username: str, password: str) -> etcd.Client:
    return etcd.Client(etcd.parse_endpoints(server.endpoint), etcd.Credentials(username, password))


def test_setting_up_users_turns_authentication_on_and_a_repetition_changes_nothing(
    server: EtcdServer, secret: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert auth.main(secret) == 0
    assert (
        "etcd now asks for users; trainer may read and write keys that start with /bireme/"
        in capsys.readouterr().err
    )
    assert auth.main(secret) == 0
    assert "etcd is up to date" in capsys.readouterr().err
    trainer = client(server, "trainer", "one")
    trainer.put("/bireme/a", "1", trainer.lease_grant(60))
    with pytest.raises(etcd.AuthError, match="permission denied"):
        trainer.put("/other", "1")
    with pytest.raises(etcd.AuthError, match="user name is empty"):
        client(server, "", "").get("/bireme/a")


def test_a_user_without_permission_for_the_status_can_check_that_etcd_is_up(
    server: EtcdServer, secret: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert auth.main(secret) == 0
    capsys.readouterr()
    assert check.main([server.endpoint], secret) == 0
    assert capsys.readouterr().out.startswith("etcd at http://127.0.0.1:")
    assert check.main([server.endpoint], {**secret, "BIREME_ETCD_PASSWORD": "lost"}) == 1


def test_a_member_joins_a_protected_cluster_as_root(server: EtcdServer, secret: dict[str, str]) -> None:
    assert auth.main(secret) == 0
    root = client(server, "root", "root-1")
    assert len(root.members(by_majority=False)) == 1
    added = next(each for each in root.member_add("http://127.0.0.1:1") if not each.name)
    # One of two has no majority; only the list of members can still be read.
    assert added.id in {each.id for each in root.members(by_majority=False)}


def test_a_changed_password_and_prefix_are_applied(server: EtcdServer, secret: dict[str, str]) -> None:
    assert auth.main(secret) == 0
    assert auth.main({**secret, "BIREME_ETCD_PASSWORD": "two", "BIREME_ETCD_PREFIX": "/jobs/"}) == 0
    trainer = client(server, "trainer", "two")
    trainer.put("/jobs/a", "1")
    with pytest.raises(etcd.AuthError, match="permission denied"):
        trainer.put("/bireme/a", "1")
    with pytest.raises(etcd.AuthError, match="authentication failed"):
        client(server, "trainer", "one").get("/jobs/a")


def test_a_wrong_root_password_is_refused_and_nothing_changes(
    server: EtcdServer, secret: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert auth.main(secret) == 0
    assert auth.main({**secret, "BIREME_ETCD_ROOT_PASSWORD": "lost", "BIREME_ETCD_PASSWORD": "two"}) == 1
    assert "put the first one back into the Secret" in capsys.readouterr().err
    assert client(server, "trainer", "one").get("/bireme/a") is None


def test_an_interrupted_setup_is_completed(server: EtcdServer, secret: dict[str, str]) -> None:
    for path, body in (("user/add", {"name": "root", "password": "old"}), ("role/add", {"name": "trainer"})):
        server.request(f"/v3/auth/{path}", body)
    assert auth.main(secret) == 0
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
    assert auth.main({**env, **change}) == 1
    assert sentence in capsys.readouterr().err
