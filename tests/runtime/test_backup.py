"""Snapshots of a real etcd, restoring them with etcdutl, and defragmentation."""

from __future__ import annotations

import hashlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.core.paths import Paths
from bireme.tools import Toolbox
from bireme_runtime.etcd import client as etcd
from bireme_runtime.etcd.s3 import backup as backup_s3
from bireme_runtime.etcd.server import backup, member
from tests.runtime.etcd_servers import EtcdServer, NewEtcd, free_port
from tests.runtime.s3_servers import S3Server, s3_server

GMTIME = time.gmtime


def client_of(server: EtcdServer) -> etcd.Client:
    return etcd.Client(etcd.parse_endpoints(server.endpoint), timeout=20)


def run(server: EtcdServer, *arguments: str, **env: str) -> int:
    return backup.main(arguments, {"BIREME_ETCD_ENDPOINTS": server.endpoint, **env})


def restore(snapshot: Path, target: Path, *options: str) -> None:
    etcdutl = Toolbox(Paths.discover(start=Path(__file__))).path("etcdutl")
    command: list[str | Path] = [etcdutl, "snapshot", "restore", snapshot, f"--data-dir={target}", *options]
    subprocess.run([*command, "--bump-revision=1000000", "--mark-compacted"], check=True, capture_output=True)


def test_a_lost_etcd_starts_again_from_its_snapshot_with_a_later_revision(
    new_etcd: NewEtcd, tmp_path: Path
) -> None:
    server = new_etcd().start()
    revision = client_of(server).put("/ship", "bireme")
    folder, restored = tmp_path / "snapshots", tmp_path / "restored"
    assert run(server, "save", str(folder)) == 0
    server.stop()

    port, peer_port = free_port(), free_port()
    base = {
        "listen-client-urls": f"http://127.0.0.1:{port}",
        "listen-peer-urls": f"http://127.0.0.1:{peer_port}",
    }
    settings = member.MemberSettings(
        "etcd-0",
        ordinal=0,
        base=base,
        data_dir=tmp_path / "home" / "data",
        config=tmp_path / "etcd.json",
        token="test",
        host=lambda ordinal: f"127.0.0.{ordinal + 1}",
        restored=restored,
        resolves="127.0.0.1".__eq__,
    )
    peer = settings.url(0, "peer")
    options = [f"--initial-cluster=etcd-0={peer}", f"--initial-advertise-peer-urls={peer}"]
    restore(folder / backup.LATEST, restored, "--name=etcd-0", *options)
    assert member.prepare(settings) == "starts from the snapshot"
    found = client_of(new_etcd(port=port, config=settings.config).start()).get("/ship")
    assert found is not None
    assert found.value == "bireme"
    assert found.mod_revision >= revision
    assert member.prepare(settings) == "restarts"


def it_is(hour: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the hour in the names of snapshots."""
    now = (2026, 1, 1, hour, 0, 0, 3, 1, 0)
    monkeypatch.setattr(time, "gmtime", lambda *moment: GMTIME(*moment) if moment else now)


def test_the_newest_snapshots_are_kept_and_latest_is_the_newest(
    shared_etcd: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "snapshots"
    for hour in range(4):
        it_is(hour, monkeypatch)
        client_of(shared_etcd).put("/hour", str(hour))
        assert run(shared_etcd, "save", str(folder), BIREME_BACKUP_KEEP="2") == 0
    kept = ["etcd-20260101T020000Z.db", "etcd-20260101T030000Z.db"]
    assert sorted(file.name for file in folder.iterdir()) == [*kept, backup.LATEST]
    assert (folder / backup.LATEST).samefile(folder / kept[-1])


def test_a_snapshot_that_a_wrong_clock_dated_later_is_named_and_deletes_none(
    shared_etcd: EtcdServer,
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, saves = tmp_path / "snapshots", tmp_path / "saves"
    env = {**s3.env, "BIREME_ETCD_ENDPOINTS": shared_etcd.endpoint, "BIREME_BACKUP_URL": "s3://ships/clock"}
    for hour, code in ((9, 0), (1, 1), (2, 1)):
        it_is(hour, monkeypatch)
        assert run(shared_etcd, "save", str(folder), BIREME_BACKUP_KEEP="1") == code
        assert backup_s3.main(["save", str(saves / str(hour))], {**env, "BIREME_BACKUP_KEEP": "1"}) == code
        sentence = f"etcd-20260101T0{hour}0000Z.db is saved, but etcd-20260101T090000Z.db has a later time"
        assert capsys.readouterr().err.count(sentence) == 2 * code
    kept = ["etcd-20260101T020000Z.db", "etcd-20260101T090000Z.db"]
    assert sorted(file.name for file in folder.iterdir()) == [*kept, backup.LATEST]
    assert (folder / backup.LATEST).samefile(folder / kept[0])
    back = tmp_path / "back"
    back.mkdir()
    assert backup_s3.main(["fetch", str(back), kept[0]], env) == 0


class Torn(etcd.Client):
    """A client whose snapshots are truncated."""

    def snapshot(self) -> Iterator[bytes]:
        whole = b"".join(super().snapshot())
        yield whole[: len(whole) // 2]


def test_an_incomplete_snapshot_is_refused_and_the_older_one_is_kept(
    shared_etcd: EtcdServer, tmp_path: Path
) -> None:
    folder = tmp_path / "snapshots"
    assert run(shared_etcd, "save", str(folder)) == 0
    before = content(folder)
    with pytest.raises(backup.BackupFailed, match="does not match its checksum"):
        backup.save(Torn(etcd.parse_endpoints(shared_etcd.endpoint)), folder, keep=7)
    assert content(folder) == before


def test_a_snapshot_is_not_for_everybody_on_the_claim(tmp_path: Path) -> None:
    database = b"with the passwords of etcd's users"
    backup.write_checked([database, hashlib.sha256(database).digest()], tmp_path / "etcd.db")
    assert not (tmp_path / "etcd.db").stat().st_mode & 0o007


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("moto") / "log") as server:
        server.put("ships")
        yield server


def test_the_newest_snapshots_are_kept_in_s3_and_can_be_fetched(
    shared_etcd: EtcdServer,
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saves, back = tmp_path / "saves", tmp_path / "back"
    back.mkdir()
    env = {
        **s3.env,
        "BIREME_ETCD_ENDPOINTS": shared_etcd.endpoint,
        "BIREME_BACKUP_URL": "s3://ships/etcd/one",
    }
    saved = {}
    for hour in range(3):
        it_is(hour, monkeypatch)
        client_of(shared_etcd).put("/hour", str(hour))
        assert backup_s3.main(["save", str(saves)], {**env, "BIREME_BACKUP_KEEP": "2"}) == 0
        saved[f"etcd-20260101T0{hour}0000Z.db"] = (saves / backup.LATEST).read_bytes()
    assert "s3://ships/etcd/one/etcd-20260101T020000Z.db" in capsys.readouterr().err
    first, second, third = saved
    new = {**env, "POD_NAME": "etcd-0", "BIREME_ETCD_DATA_DIR": str(tmp_path / "data")}
    assert backup_s3.main(["fetch", str(back), backup.LATEST], new) == 0, "a first member without data"
    assert backup_s3.main(["fetch", str(back), second], env) == 0
    assert content(back) == {backup.LATEST: saved[third], second: saved[second]}
    assert backup_s3.main(["fetch", str(back), first], env) == 1
    assert f"s3://ships/etcd/one has no snapshot {first}; it has 2 others" in capsys.readouterr().err

    s3.put(f"ships/etcd/one/{third}", saved[third][:-1])
    (back / backup.LATEST).unlink()
    assert backup_s3.main(["fetch", str(back), backup.LATEST], env) == 1
    assert "does not match its checksum" in capsys.readouterr().err
    assert not (back / backup.LATEST).exists()


@pytest.mark.parametrize(("name", "has_data"), [("etcd-0", True), ("etcd-1", False), ("etcd-10", False)])
def test_a_member_that_does_not_start_from_the_snapshot_asks_neither_claim_nor_s3(
    tmp_path: Path, name: str, has_data: bool
) -> None:
    (tmp_path / "data/member" / ("wal" if has_data else "")).mkdir(parents=True)
    env = {"POD_NAME": name, "BIREME_ETCD_DATA_DIR": str(tmp_path / "data")}
    assert backup.main(["fetch", str(tmp_path / "gone"), str(tmp_path), backup.LATEST], env) == 0
    (tmp_path / backup.LATEST).unlink()
    env |= {"BIREME_BACKUP_URL": "s3://gone/etcd", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}
    assert backup_s3.main(["fetch", str(tmp_path), backup.LATEST], env) == 0
    # The next container restores something, which nobody uses.
    restore(tmp_path / backup.LATEST, tmp_path / "restored")
    assert (tmp_path / "restored/member/wal").is_dir()


def test_a_first_member_without_data_copies_the_snapshot_of_its_claim(
    shared_etcd: EtcdServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim, there = tmp_path / "claim", tmp_path / "there"
    there.mkdir()
    env = {"POD_NAME": "etcd-0", "BIREME_ETCD_DATA_DIR": str(tmp_path / "data")}
    fetch = ["fetch", str(claim), str(there), backup.LATEST]
    assert backup.main(fetch, env) == 1
    assert "the claim has no snapshot latest.db: name one of its files" in capsys.readouterr().err
    assert run(shared_etcd, "save", str(claim)) == 0
    assert backup.main(fetch, env) == 0
    assert content(there) == {backup.LATEST: (claim / backup.LATEST).read_bytes()}
    with (claim / backup.LATEST).open("r+b") as file:
        file.truncate(1000)
    assert backup.main(fetch, env) == 1
    assert "does not match its checksum" in capsys.readouterr().err


def test_a_backup_url_that_is_not_a_bucket_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert backup_s3.main(["save", str(tmp_path)], {"BIREME_BACKUP_URL": "https://ships/etcd"}) == 1
    assert "https://ships/etcd is not s3://BUCKET/PREFIX" in capsys.readouterr().err
    assert backup_s3.main(["fetch", str(tmp_path)], {}) == 64


def test_defragmenting_frees_disk_space_after_compaction(
    new_etcd: NewEtcd, capsys: pytest.CaptureFixture[str]
) -> None:
    server = new_etcd().start()
    client = client_of(server)
    for _ in range(100):
        revision = client.put("/big", "x" * 50_000)
    client.call("/v3/kv/compaction", {"revision": str(revision), "physical": True})
    assert run(server, "defragment") == 0
    before, after = map(int, re.findall(r"(\d+) bytes before, (\d+) after", capsys.readouterr().err)[0])
    assert after < before / 4
    assert client.get("/big") is not None


def test_an_etcd_that_does_not_answer_is_reported_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = {"BIREME_ETCD_ENDPOINTS": f"127.0.0.1:{free_port()}", "BIREME_WAIT_SECONDS": "0.2"}
    assert backup.main(["save", str(tmp_path / "new")], gone) == 1
    assert "bireme backup: etcd did not answer" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert backup.main(["save"], gone) == 64
    assert "usage" in capsys.readouterr().out
