"""The etcd client with real servers, above all when they fail."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import EtcdServer, NewEtcd, Proxy, free_port, set_up_users


def client_of(*servers: EtcdServer, timeout: float = 5.0, **credentials: str) -> etcd.Client:
    endpoints = etcd.parse_endpoints(",".join(server.endpoint for server in servers))
    return etcd.Client(endpoints, etcd.Credentials(**credentials), timeout)


@pytest.fixture
def client(shared_etcd: EtcdServer) -> etcd.Client:
    return client_of(shared_etcd)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_endpoints_are_parsed_in_torchruns_form_and_as_urls() -> None:
    parsed = etcd.parse_endpoints("a:1, https://b ,[::1]:3,http://[fe80::1]")
    assert [str(endpoint) for endpoint in parsed] == [
        "http://a:1", "https://b:2379", "http://[::1]:3", "http://[fe80::1]:2379",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["a:b", "ftp://a", ":2379", "http://a/path"])
def test_an_invalid_endpoint_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match="is not an etcd endpoint; write host:port"):
        etcd.parse_endpoints(text)


def test_a_written_key_is_read_with_its_revisions(client: etcd.Client, prefix: str) -> None:
    revision = client.put(prefix + "ä", "wört")
    kv = client.get(prefix + "ä")
    assert kv == etcd.KeyValue(prefix + "ä", "wört", revision, revision, 0)
    assert client.get(prefix + "o") is None


def test_a_range_contains_only_keys_with_its_prefix(client: etcd.Client, prefix: str) -> None:
    for key in (prefix + "a/1", prefix + "a/2", prefix + "b"):
        client.put(key, key)
    assert [kv.key for kv in client.range(prefix + "a/").keys] == [prefix + "a/1", prefix + "a/2"]


def test_a_transaction_is_carried_out_only_if_its_comparisons_hold(client: etcd.Client, prefix: str) -> None:
    first = client.txn([etcd.key_is_unchanged(prefix, 0)], [etcd.put_op(prefix, "one")])
    assert first.succeeded
    assert not client.txn([etcd.key_is_unchanged(prefix, 0)], [etcd.put_op(prefix, "two")]).succeeded
    assert client.txn(
        [etcd.key_is_unchanged(prefix, first.revision)], [etcd.put_op(prefix, "three")]
    ).succeeded
    assert not client.txn([etcd.none_newer(prefix, first.revision)], [etcd.put_op(prefix, "four")]).succeeded
    assert client.txn([etcd.key_is_same(prefix, first.revision)], [etcd.put_op(prefix, "five")]).succeeded


def test_a_key_is_deleted_with_its_lease(client: etcd.Client, prefix: str) -> None:
    lease = client.lease_grant(60)
    client.put(prefix, "here", lease)
    assert client.lease_keepalive(lease) == 60
    client.lease_revoke(lease)
    assert client.get(prefix) is None
    client.lease_revoke(lease)
    with pytest.raises(etcd.LeaseLost):
        client.lease_keepalive(lease)
    with pytest.raises(etcd.LeaseLost):
        client.put(prefix, "back", lease)


def test_a_watch_shows_changes_and_resumes_from_a_revision(client: etcd.Client, prefix: str) -> None:
    lease = client.lease_grant(60)
    revision = client.put(prefix + "a", "1", lease)
    client.put(prefix + "b", "2")
    client.lease_revoke(lease)
    seen: list[tuple[str, str, bool]] = []
    watch = client.watch(prefix, revision + 1)
    for _, events in watch:
        seen += [(event.kv.key, event.kv.value, event.deleted) for event in events]
        if len(seen) == 2:
            client.put(prefix + "c", "3")
        if len(seen) == 3:
            watch.close()
    assert seen == [(prefix + "b", "2", False), (prefix + "a", "", True), (prefix + "c", "3", False)]


def test_a_watch_ends_at_once_when_another_thread_closes_it(client: etcd.Client, prefix: str) -> None:
    watch = client.watch(prefix, 0)
    threading.Timer(0.2, watch.close).start()
    start = time.monotonic()
    assert all(not events for _, events in watch)
    assert time.monotonic() - start < 60


def test_a_watch_from_a_compacted_revision_raises_compacted(new_etcd: NewEtcd, prefix: str) -> None:
    server = new_etcd().start()
    client = client_of(server)
    first = client.put(prefix, "1")
    last = client.put(prefix, "2")
    server.request("/v3/kv/compaction", {"revision": str(last)})
    with pytest.raises(etcd.Compacted):
        list(client.watch(prefix, first))


def test_a_silent_watch_ends_after_its_idle_time(client: etcd.Client, prefix: str) -> None:
    with pytest.raises(etcd.Unavailable, match="timed out"):
        list(client.watch(prefix, 0, idle_timeout=0.3))


def test_after_a_dead_endpoint_the_next_one_serves_reads_and_writes(
    shared_etcd: EtcdServer, prefix: str
) -> None:
    endpoints = etcd.parse_endpoints(f"127.0.0.1:{free_port()},{shared_etcd.endpoint}")
    for _ in range(4):
        client = etcd.Client(endpoints)
        assert client.txn([], [etcd.put_op(prefix, "x")]).succeeded
        assert client.get(prefix)
        watch = client.watch(prefix, 0)
        watch.close()


def test_without_a_listening_endpoint_requests_are_unavailable(prefix: str) -> None:
    client = etcd.Client(etcd.parse_endpoints(f"127.0.0.1:{free_port()}"))
    with pytest.raises(etcd.Unavailable, match="cannot be reached"):
        client.txn([], [etcd.put_op(prefix, "x")])


def test_a_silent_endpoint_makes_reads_fail_over_and_transactions_ambiguous(
    shared_etcd: EtcdServer, silent_port: int, prefix: str
) -> None:
    endpoints = etcd.parse_endpoints(f"127.0.0.1:{silent_port},{shared_etcd.endpoint}")
    reader = etcd.Client(endpoints, timeout=5)
    assert reader.get(prefix) is None
    silent = etcd.Client(etcd.parse_endpoints(f"127.0.0.1:{silent_port}"), timeout=0.3)
    with pytest.raises(etcd.Ambiguous, match="did not answer"):
        silent.txn([], [etcd.put_op(prefix, "x")])
    with pytest.raises(etcd.Unavailable):
        silent.get(prefix)


def test_a_transaction_whose_answer_is_lost_is_ambiguous_and_carried_out(
    shared_etcd: EtcdServer, client: etcd.Client, prefix: str
) -> None:
    proxy = Proxy(shared_etcd.port)
    behind = etcd.Client(etcd.parse_endpoints(proxy.endpoint))
    behind.put(prefix, "before")
    proxy.mode = "lose answers"
    with pytest.raises(etcd.Ambiguous, match="did not answer"):
        behind.txn([], [etcd.put_op(prefix, "after")])
    proxy.close()
    kv = client.get(prefix)
    assert kv is not None
    assert kv.value == "after"


def test_the_cluster_is_described(client: etcd.Client, shared_etcd: EtcdServer) -> None:
    status = client.status()
    assert status.version.startswith("3.")
    (member,) = client.members()
    assert member.id == status.leader
    assert member.client_urls == (f"http://{shared_etcd.endpoint}",)


# TLS and users ----------------------------------------


def protected(server: EtcdServer) -> None:
    for path, body in (
        ("user/add", {"name": "root", "password": "r"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("role/add", {"name": "mine"}),
        (
            "role/grant",
            {"name": "mine", "perm": {"permType": "READWRITE", "key": "L20v", "range_end": "L20w"}},
        ),
        ("user/add", {"name": "ann", "password": "a"}),
        ("user/grant", {"user": "ann", "role": "mine"}),
        ("enable", {}),
    ):
        server.request(f"/v3/auth/{path}", body)


def test_with_users_each_reaches_only_its_own_keys_also_after_its_login_is_lost(new_etcd: NewEtcd) -> None:
    server = new_etcd("--auth-token-ttl=4").start()
    client = client_of(server, username="ann", password="a")
    client.put("/m/before", "auth is still off")
    protected(server)
    assert client.txn([], [etcd.put_op("/m/a", "1")]).succeeded
    lease = client.lease_grant(60)
    client.put("/m/b", "2", lease)
    with pytest.raises(etcd.AuthError, match="permission denied"):
        client.get("/other")
    time.sleep(5.2)
    client.put("/m/c", "the token has expired meanwhile", lease)
    keys = {event.kv.key for _, events in _until_events(client.watch("/m/", 1)) for event in events}
    assert {"/m/a", "/m/b", "/m/c"} <= keys
    server.stop()
    server.start()
    assert client.txn([], [etcd.put_op("/m/a", "2")]).succeeded
    for _, events in _until_events(client.watch("/m/", 1)):
        assert events
    with pytest.raises(etcd.AuthError, match="authentication failed"):
        client_of(server, username="ann", password="wrong").get("/m/a")
    with pytest.raises(etcd.AuthError, match="user name is empty"):
        client_of(server).get("/m/a")


def test_with_tls_only_the_right_authority_and_client_can_connect(new_etcd: NewEtcd, tmp_path: Path) -> None:
    files = certificates(tmp_path)
    url = tls_server(new_etcd, files)
    client = etcd.Client(etcd.parse_endpoints(url), etcd.Credentials(**files))
    etcd.wait_until_up(client, 60, print)
    client.put("/a", "1")
    with pytest.raises(etcd.EtcdError):
        etcd.Client(etcd.parse_endpoints(url), etcd.Credentials(cacert=files["cacert"])).get("/a")
    with pytest.raises(etcd.Unavailable, match="certificate verify failed"):
        etcd.Client(etcd.parse_endpoints(url)).get("/a")
    with pytest.raises(ValueError, match="TLS file /no/such does not exist"):
        etcd.Client(etcd.parse_endpoints(url), etcd.Credentials(cacert="/no/such"))


def test_with_users_a_client_certificate_with_a_common_name_is_reported(
    new_etcd: NewEtcd, tmp_path: Path
) -> None:
    named, nameless = certificates(tmp_path), certificates(tmp_path, "/O=etcd")
    url = tls_server(new_etcd, nameless)
    wanted = {"BIREME_ETCD_ENDPOINTS": url, "BIREME_ETCD_ROOT_PASSWORD": "r", "BIREME_ETCD_USERNAME": "u"}
    files = {f"BIREME_ETCD_{name.upper()}": file for name, file in nameless.items()}
    assert set_up_users({**wanted, "BIREME_ETCD_PASSWORD": "p", **files})
    user = etcd.Credentials("u", "p", **nameless)
    etcd.Client(etcd.parse_endpoints(url), user).put("/a", "1")
    with pytest.raises(etcd.AuthError, match="client certificates without a CommonName: make one without"):
        etcd.Client(etcd.parse_endpoints(url), etcd.Credentials("u", "p", **named)).get("/a")


def test_waiting_for_etcd_is_limited_and_logged(prefix: str) -> None:
    words: list[str] = []
    client = etcd.Client(etcd.parse_endpoints(f"127.0.0.1:{free_port()}"))
    with pytest.raises(etcd.Unavailable, match=r"etcd did not answer within 3 s: .*cannot be reached"):
        etcd.wait_until_up(client, 3, words.append)
    assert len(words) == 1
    assert re.match(r"waiting, \d s at most, for etcd: http://127\.0\.0\.1:", words[0])


def _until_events(watch: etcd.Watch) -> Iterator[tuple[int, tuple[etcd.Event, ...]]]:
    for batch in watch:
        if batch[1]:
            yield batch
            watch.close()


def tls_server(new_etcd: NewEtcd, files: dict[str, str]) -> str:
    """The URL of an etcd with these TLS files that demands client certificates; it may still be starting."""
    url = f"https://127.0.0.1:{free_port()}"
    server = new_etcd(
        f"--listen-client-urls={url}", f"--advertise-client-urls={url}", "--client-cert-auth",
        f"--cert-file={files['cert']}", f"--key-file={files['key']}", f"--trusted-ca-file={files['cacert']}",
    )  # fmt: skip
    server.start(wait=False)
    return url


def certificates(folder: Path, subject: str = "/CN=etcd") -> dict[str, str]:
    """A certificate for 127.0.0.1, for servers and clients, signed by the folder's authority."""
    run = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    ca_key, ca = folder / "ca.key", folder / "ca.pem"
    key, cert = (folder / f"{subject.replace('/', '')}.{suffix}" for suffix in ("key", "pem"))
    if not ca.exists():
        own: list[str | Path] = ["-keyout", ca_key, "-out", ca, "-subj", "/CN=ca", "-days", "1"]
        subprocess.run([*run, *own], check=True, capture_output=True)
    subprocess.run(
        [*run, "-keyout", key, "-out", cert, "-subj", subject, "-days", "1", "-CA", ca, "-CAkey", ca_key,
         "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "extendedKeyUsage=serverAuth,clientAuth"],
        check=True, capture_output=True,
    )  # fmt: skip
    return {"cacert": str(ca), "cert": str(cert), "key": str(key)}
