"""How etcd members join their cluster: real etcd processes, on loopback addresses instead of pods."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bireme.helm import Render
from bireme_runtime.etcd import client as etcd
from bireme_runtime.etcd.server import member
from tests.runtime.etcd_servers import EtcdServer, free_port
from tests.support.rendered import the
from tests.support.waiting import until


class Pods:
    """A simulated StatefulSet of etcd members: an address and a data folder for each ordinal."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.binary, self.folder = binary, folder
        self.port, self.peer_port = free_port(), free_port()
        self.running: dict[int, EtcdServer] = {}
        self.addresses: set[str] = set()
        self.words: list[str] = []

    @staticmethod
    def host(ordinal: int) -> str:
        return f"127.77.0.{ordinal + 1}"

    def settings(self, ordinal: int, wait_seconds: float = 30, replicas: int = 1) -> member.MemberSettings:
        home = self.folder / str(ordinal)
        home.mkdir(parents=True, exist_ok=True)
        host = self.host(ordinal)
        base = {
            "listen-client-urls": f"http://{host}:{self.port}",
            "listen-peer-urls": f"http://{host}:{self.peer_port}",
            "unsafe-no-fsync": True,
            "log-level": "error",
        }
        return member.MemberSettings(
            f"etcd-{ordinal}", ordinal, base, home / "data", home / "etcd.json", "test", self.host,
            replicas=replicas, wait_seconds=wait_seconds, resolves=self.addresses.__contains__,
        )  # fmt: skip

    def start(self, ordinal: int, wait_seconds: float = 30, replicas: int = 1) -> str:
        """Run the init container of one pod, and then etcd."""
        settings = self.settings(ordinal, wait_seconds, replicas)
        self.addresses.add(self.host(ordinal))
        how = member.prepare(settings, self.words.append)
        server = EtcdServer(
            self.binary,
            self.folder / str(ordinal),
            self.port,
            config=settings.config,
            host=self.host(ordinal),
        )
        self.running[ordinal] = server.start(wait=False)
        return how

    def start_together(self, *ordinals: int, replicas: int = 1) -> list[str]:
        with ThreadPoolExecutor(len(ordinals)) as pool:
            return list(pool.map(lambda ordinal: self.start(ordinal, replicas=replicas), ordinals))

    def stop(self, ordinal: int, lose_data: bool = False) -> None:
        self.running.pop(ordinal).stop()
        self.addresses.discard(self.host(ordinal))
        if lose_data:
            shutil.rmtree(self.folder / str(ordinal) / "data")

    def client(self) -> etcd.Client:
        endpoints = ",".join(f"{self.host(ordinal)}:{self.port}" for ordinal in self.running)
        return etcd.Client(etcd.parse_endpoints(endpoints), timeout=5)

    def asked(self, ask: Callable[[etcd.Client], Any]) -> Any:
        """What etcd answers, as soon as it does."""
        answers: list[Any] = []

        def has_answered() -> bool:
            with contextlib.suppress(etcd.EtcdError):
                answers.append(ask(self.client()))
            return bool(answers)

        until(has_answered, what="a member to answer")
        return answers[0]

    def names(self) -> list[str]:
        """The names of the members, once all running ones have published theirs."""
        found: list[str] = []

        def are_published() -> bool:
            found[:] = sorted(each.name for each in self.asked(etcd.Client.members))
            return len(found) >= len(self.running) and all(found)

        until(are_published, what=lambda: f"all names: {found}")
        return found

    def write(self, key: str) -> None:
        self.asked(lambda client: client.put(key, "kept"))

    def kept(self) -> list[str]:
        return [kv.key for kv in self.asked(lambda client: client.range("/")).keys]


@pytest.fixture
def pods(etcd_binary: Path, tmp_path: Path) -> Iterator[Pods]:
    pods = Pods(etcd_binary, tmp_path)
    yield pods
    for server in pods.running.values():
        server.stop()


THREE = ["etcd-0", "etcd-1", "etcd-2"]


def test_a_single_member_bootstraps_without_data_and_restarts_with_data(pods: Pods) -> None:
    assert pods.start(0) == "bootstraps"
    pods.write("/a")
    pods.stop(0)
    assert pods.start(0) == "restarts"
    assert (pods.names(), pods.kept()) == (["etcd-0"], ["/a"])
    pods.stop(0, lose_data=True)
    assert pods.start(0) == "bootstraps"
    assert (pods.names(), pods.kept()) == (["etcd-0"], [])


def test_one_member_grows_to_three_which_survive_the_loss_of_any_one(pods: Pods) -> None:
    pods.start(0)
    pods.write("/first")
    # The pod of ordinal 1 is killed after it was registered and before etcd started.
    pods.addresses.add(pods.host(1))
    assert member.prepare(pods.settings(1)) == "joins"
    assert pods.start_together(2, 1) == ["joins", "joins"]
    assert (pods.names(), pods.kept()) == (THREE, ["/first"])
    for ordinal, lose_data, how in ((1, False, "restarts"), (0, True, "joins")):
        pods.stop(ordinal, lose_data)
        pods.write(f"/without-{ordinal}")
        assert pods.start(ordinal) == how
        assert pods.names() == THREE
    assert pods.kept() == ["/first", "/without-0", "/without-1"]


def test_ordinal_0_without_data_never_bootstraps_beside_silent_members(pods: Pods) -> None:
    pods.addresses |= {pods.host(1), pods.host(2)}
    with pytest.raises(member.CannotJoin, match=r"waiting 1 s for 127.77.0.2, 127.77.0.3 to answer, .*data"):
        pods.start(0, wait_seconds=1)
    assert not pods.settings(0).config.exists()
    assert re.match(r"waiting, \d s at most, for 127\.77\.0\.2, 127\.77\.0\.3 to answer", pods.words[0])


def test_ordinal_0_without_data_never_bootstraps_while_members_with_claims_have_no_address(
    pods: Pods,
) -> None:
    pods.addresses.add(pods.host(0))
    with pytest.raises(member.CannotJoin, match=r"waiting 1 s for 127.77.0.2, 127.77.0.3 to answer, .*data"):
        member.prepare(pods.settings(0, wait_seconds=1, replicas=3))
    assert not pods.settings(0).config.exists()
    assert pods.start_together(0, 1, 2, replicas=3) == ["bootstraps", "joins", "joins"]
    assert pods.names() == THREE


def test_a_member_waits_until_its_own_name_resolves(pods: Pods) -> None:
    settings = pods.settings(0, wait_seconds=0.5)
    with pytest.raises(member.CannotJoin, match=r"the name service \(127.77.0.1 does not resolve yet\)"):
        member.prepare(settings)


def test_a_member_that_finds_no_cluster_gives_up_with_a_sentence(pods: Pods) -> None:
    with pytest.raises(
        member.CannotJoin, match=r"gave up after waiting 1 s for 127.77.0.1 to have an address"
    ):
        pods.start(1, wait_seconds=1)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    base = tmp_path / "base.json"
    base.write_text(
        '{"listen-client-urls": "https://0.0.0.0:2379", "listen-peer-urls": "http://0.0.0.0:2380"}'
    )
    return {
        "POD_NAME": "imagenet-etcd-2", "BIREME_ETCD_PEER_DOMAIN": "imagenet-etcd-peers.default.svc",
        "BIREME_ETCD_BASE": str(base), "BIREME_ETCD_DATA_DIR": str(tmp_path / "data"),
        "BIREME_ETCD_CONFIG": str(tmp_path / "etcd.json"),
    }  # fmt: skip


def test_names_and_urls_follow_from_the_pods_name(environment: dict[str, str]) -> None:
    settings = member.MemberSettings.from_env({**environment, "BIREME_ETCD_ROOT_PASSWORD": "secret"})
    assert settings.replicas == 1
    Path(environment["BIREME_ETCD_BASE"]).with_name("replicas").write_text("3")
    assert member.MemberSettings.from_env(environment).replicas == 3
    assert settings.url(0, "client") == "https://imagenet-etcd-0.imagenet-etcd-peers.default.svc:2379"
    assert settings.url(2, "peer") == "http://imagenet-etcd-2.imagenet-etcd-peers.default.svc:2380"
    assert (settings.credentials.username, settings.wait_seconds) == ("root", 600)
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"POD_NAME": ""}, "an environment variable has a value that cannot be used"),
        ({"BIREME_ETCD_BASE": "/no/such"}, "an environment variable has a value that cannot be used"),
    ],
)
def test_an_unusable_environment_is_reported(
    environment: dict[str, str], change: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert member.main({**environment, **change}) == 1
    assert sentence in capsys.readouterr().err
    del environment["POD_NAME"]
    assert member.main(environment) == 1
    assert "the environment variable POD_NAME is missing" in capsys.readouterr().err


def test_a_member_with_data_is_ready_through_the_command_too(
    environment: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "data" / "member" / "wal").mkdir(parents=True)
    assert member.main(environment) == 0
    assert "imagenet-etcd-2 restarts" in capsys.readouterr().err
    assert '"initial-cluster-state": "existing"' in (tmp_path / "etcd.json").read_text()


def test_the_charts_etcd_listens_on_both_families_of_addresses(
    render: Callable[..., Render], etcd_binary: Path, tmp_path: Path
) -> None:
    config = json.loads(the(render("etcd"), "ConfigMap", "release")["data"]["etcd.json"])
    ports = {use: free_port() for use in ("client", "peer", "metrics")}
    for use, port in ports.items():
        config[f"listen-{use}-urls"] = re.sub(r":\d+$", f":{port}", config[f"listen-{use}-urls"])
    urls = {use: f"http://127.0.0.1:{ports[use]}" for use in ports}
    config |= {"name": "one", "data-dir": str(tmp_path / "data"), "initial-cluster": f"one={urls['peer']}"}
    config |= {"advertise-client-urls": urls["client"], "initial-advertise-peer-urls": urls["peer"]}
    file = tmp_path / "etcd.json"
    file.write_text(json.dumps(config))
    server = EtcdServer(etcd_binary, tmp_path, ports["client"], config=file, host="[::1]").start()
    try:
        for host in ("127.0.0.1", "::1"):
            for port in ports.values():
                socket.create_connection((host, port), timeout=60).close()
    finally:
        server.stop()
