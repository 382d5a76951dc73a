"""What S3, STS, Pod Identity and web servers answer in passing does not end a Job for good."""

from __future__ import annotations

import calendar
import ctypes
import errno
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest

from bireme_runtime.dataset.claim.__main__ import publish_at, stage_from
from bireme_runtime.dataset.claim.places import open_source
from bireme_runtime.dataset.settings import settings_from
from bireme_runtime.process.errors import BiremeError, Unreachable
from bireme_runtime.sources.source import SourceError, safe_path
from bireme_runtime.sources.web import aws
from bireme_runtime.sources.web.s3 import S3Source
from tests.runtime.datasets import read, refused, run, settings, stage_and_publish, write
from tests.runtime.etcd_servers import Proxy
from tests.runtime.faulty_servers import Faults, FaultyServer, error, faulty_server, tag

OBJECTS = {f"data/{name}": name.encode() * 300_000 for name in ("a", "b", "c d", "e+f", "g")}
EXPECTED = {key.removeprefix("data/"): content for key, content in OBJECTS.items()}


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server(dict(OBJECTS)) as found:
        yield found


@pytest.mark.parametrize(
    "fault",
    [
        Faults("list-type", error(503, "SlowDown"), times=2),
        Faults("continuation-token=2", error(503, "SlowDown")),
        Faults("continuation-token=2", (200, b"<ListBucketResult><Con")),
        Faults("continuation-token=2", (200, b"<html>A page of a proxy.</html>")),
        Faults("continuation-token=2", error(200, "InternalError")),
        Faults("GET /b/data/a", error(400, "RequestTimeout")),
        Faults("GET /b/data/a", error(500, "InternalError")),
        Faults("list-type", error(403, "RequestTimeTooSkewed")),
    ],
    ids=lambda fault: f"{fault.pattern} {fault.answer[0]}",
)
def test_what_s3_answers_in_passing_is_asked_again(
    server: FaultyServer, tmp_path: Path, fault: Faults
) -> None:
    server.faults.append(fault)
    stage_and_publish({**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"})})
    assert fault.times == 0
    assert read(tmp_path / "data") == EXPECTED


def page(keys: Iterable[str], rest: str) -> tuple[int, bytes]:
    """A page of a list of objects, as servers answer that are like S3."""
    rows = "".join(
        f"<Contents><Key>{key}</Key><Size>{len(OBJECTS[key])}</Size><ETag>{tag(OBJECTS[key])}</ETag></Contents>"
        for key in keys
    )
    return 200, f"<ListBucketResult>{rest}{rows}</ListBucketResult>".encode()


CUT = "<IsTruncated>true</IsTruncated>"


@pytest.mark.parametrize(
    "more",
    [
        "",
        "<KeyCount>2</KeyCount><NextContinuationToken/>",
        "<NextContinuationToken>again</NextContinuationToken>",
        "<Marker/>",
        "<NextMarker>data/b</NextMarker>",
    ],
)
def test_a_list_that_is_not_whole_is_not_published(server: FaultyServer, tmp_path: Path, more: str) -> None:
    # The same page, whatever is asked.
    server.faults.append(Faults("list-type", page(["data/a", "data/b"], CUT + more), times=99))
    output = refused("copy", {**server.env, **settings(tmp_path / "d", {"url": "s3://b/data"})})
    assert "the list of s3://b/data is not whole" in output
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("more", ["<NextMarker>data/b</NextMarker>", "<Marker></Marker>"])
def test_a_server_that_knows_version_1_of_lists_only_is_asked_for_all_pages(
    server: FaultyServer, tmp_path: Path, more: str
) -> None:
    first, rest = list(OBJECTS)[:2], list(OBJECTS)[2:]
    server.faults.append(Faults("list-type=2&prefix", page(first, CUT + more)))
    server.faults.append(Faults("marker=data%2Fb&", page(rest, "<IsTruncated>false</IsTruncated>")))
    stage_and_publish({**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"})})
    assert read(tmp_path / "data") == EXPECTED


@pytest.mark.parametrize("field", ["<Key>data/a</Key>", "<Size>3</Size>", "<Key>data/a</Key><Size>?</Size>"])
def test_an_object_of_a_list_without_a_name_or_a_size_is_reported(
    server: FaultyServer, tmp_path: Path, field: str
) -> None:
    listed = f"<ListBucketResult><Contents>{field}</Contents></ListBucketResult>"
    server.faults.append(Faults("list-type", (200, listed.encode())))
    output = refused("copy", {**server.env, **settings(tmp_path / "d", {"url": "s3://b/data"})})
    assert "has an object without a name or a size" in output


def test_requests_are_signed_with_the_clock_of_the_server(server: FaultyServer) -> None:
    later = formatdate(time.time() + 7200, usegmt=True)
    server.faults.append(Faults("list-type", error(403, "RequestTimeTooSkewed"), headers={"Date": later}))
    assert len(list(S3Source("b", "data", server.env).entries())) == len(OBJECTS)
    first, second = (calendar.timegm(time.strptime(text, "%Y%m%dT%H%M%SZ")) for text in server.stamps[:2])
    assert second - first > 7000


def _irsa(server: FaultyServer, folder: Path) -> dict[str, str]:
    (folder / "token").write_text("a.b.c")
    names = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "token"), "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}
    return {**{name: text for name, text in server.env.items() if "KEY" not in name}, **names}


def _pod_identity(server: FaultyServer, _: Path) -> dict[str, str]:
    env = {name: text for name, text in server.env.items() if "KEY" not in name}
    return {**env, "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/credentials"}


def _node(server: FaultyServer, _: Path) -> dict[str, str]:
    env = {name: text for name, text in server.env.items() if "KEY" not in name}
    # A proxy does not lead to the node.
    return {**env, "AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url}


@pytest.mark.parametrize(
    ("env_of", "fault"),
    [
        (_irsa, Faults("POST /$", error(503, "ServiceUnavailable"), times=2)),
        (_irsa, Faults("POST /$", error(400, "Throttling"))),
        (_irsa, Faults("POST /$", error(400, "IDPCommunicationError"))),
        (_irsa, Faults("POST /$", (200, b"<half"))),
        (_pod_identity, Faults("GET /credentials", (500, b"{}"))),
        (_pod_identity, Faults("GET /credentials", (429, b"{}"))),
        (_node, Faults("PUT /latest/api/token", (503, b""))),
        (_node, Faults("GET /latest/meta-data/iam/security-credentials/node", (200, b"{"))),
    ],
)
def test_a_provider_of_credentials_that_fails_in_passing_is_asked_again(
    server: FaultyServer,
    tmp_path: Path,
    env_of: Callable[[FaultyServer, Path], dict[str, str]],
    fault: Faults,
) -> None:
    server.faults.append(fault)
    stage_and_publish({**env_of(server, tmp_path), **settings(tmp_path / "data", {"url": "s3://b/data"})})
    assert fault.times == 0
    assert read(tmp_path / "data") == EXPECTED


def test_a_pod_identity_agent_that_refuses_connections_leaves_another_attempt(
    server: FaultyServer, tmp_path: Path
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/credentials"
        provider = aws.CredentialsProvider({"AWS_CONTAINER_CREDENTIALS_FULL_URI": url})
        with pytest.raises(Unreachable, match="gives no AWS credentials: Connection refused"):
            provider.credentials()
    server.faults.append(Faults("POST /$", error(403, "AccessDenied"), times=9))
    env = {**_irsa(server, tmp_path), **settings(tmp_path / "d", {"url": "s3://b/data"})}
    assert "gives no AWS credentials: HTTP 403 AccessDenied" in refused("stage", env, code=77)


@pytest.mark.parametrize(
    ("pattern", "answer"), [("PUT /latest/api/token", (403, b"")), ("GET /latest/meta-data", (404, b""))]
)
def test_a_node_without_a_role_leaves_a_sentence(
    server: FaultyServer, tmp_path: Path, pattern: str, answer: tuple[int, bytes]
) -> None:
    server.faults.append(Faults(pattern, answer, times=99))
    env = {**_node(server, tmp_path), **settings(tmp_path / "d", {"url": "s3://b/data"})}
    code, output = run("stage", env)
    assert code == 77, output
    assert "there are no AWS credentials" in output
    assert f"the role of the node: {server.url[7:]} gives no AWS credentials: HTTP {answer[0]}" in output


def test_a_metadata_service_that_is_slow_has_more_time_at_each_try(
    server: FaultyServer, tmp_path: Path
) -> None:
    # A tunnel that is not up yet, then answers that take more than a second.
    server.faults.append(Faults("PUT /latest/api/token", seconds=30))
    server.faults.append(Faults("/latest/", seconds=1.5, times=99))
    stage_and_publish({**_node(server, tmp_path), **settings(tmp_path / "data", {"url": "s3://b/data"})})
    assert read(tmp_path / "data") == EXPECTED


def test_a_metadata_service_that_starts_late_is_waited_for(server: FaultyServer, tmp_path: Path) -> None:
    late = Proxy(int(server.url.rpartition(":")[2]))
    late.mode = "refuse"
    threading.Timer(1.5, setattr, (late, "mode", "pass")).start()
    env = {**_node(server, tmp_path), "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{late.endpoint}"}
    # A refusal comes at once, and the next try all the same only after the time of the one before.
    assert aws.CredentialsProvider(env).credentials().token == "T"
    late.close()


def test_other_credentials_come_before_those_of_the_node(server: FaultyServer, tmp_path: Path) -> None:
    for env_of in (_irsa, _pod_identity):
        env = {**env_of(server, tmp_path), "AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url}
        assert aws.CredentialsProvider(env).credentials().token == "T"
    off = {**_node(server, tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    with pytest.raises(aws.CredentialsError, match="there are no AWS credentials"):
        aws.CredentialsProvider(off).credentials()
    assert not server.count("/latest/")


def test_every_request_says_that_the_requester_pays(server: FaultyServer, tmp_path: Path) -> None:
    server.objects["data/large"] = os.urandom(3 << 20)
    env = {**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"}, workers=1)}
    stage_and_publish({**env, "BIREME_SOURCE_0_BIREME_S3_REQUESTER_PAYS": "true"})
    assert set(server.payers) == {"requester"}
    server.payers.clear()
    stage_and_publish({**env, **settings(tmp_path / "other", {"url": "s3://b/data"})})
    assert set(server.payers) == {""}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"a/./f": b"1", "a/f": b"2"}, "a/f comes from data/a/./f and from data/a/f: rename one of the two"),
        ({"a/": b"content"}, "s3://b/data/a/ is named as a folder and has content: rename it"),
        ({"a": b"file", "a/b": b"below it"}, "a file and a folder"),
    ],
)
def test_keys_that_cannot_all_be_files_are_named(
    server: FaultyServer, tmp_path: Path, keys: dict[str, bytes], sentence: str
) -> None:
    server.objects = {f"data/{key}": content for key, content in keys.items()}
    assert sentence in refused("copy", {**server.env, **settings(tmp_path / "d", {"url": "s3://b/data"})})


@pytest.mark.parametrize("name", ["gr\u00fcn", "two words", "100%25", "a+b"])
def test_urls_and_redirects_are_taken_as_people_write_them(
    server: FaultyServer, tmp_path: Path, name: str
) -> None:
    server.objects[name.replace("%25", "%")] = b"content"
    stage_and_publish(settings(tmp_path / "data", {"url": f"{server.url}/b/{name}"}))
    assert list(read(tmp_path / "data").values()) == [b"content"]
    # A server sends the bytes of UTF-8, which http.server takes for Latin-1.
    place = {"Location": f"/b/{name}".encode().decode("latin-1")}
    server.faults.append(Faults("redirect", (302, b""), headers=place, times=9))
    stage_and_publish(settings(tmp_path / "other", {"url": f"{server.url}/redirect"}))
    assert read(tmp_path / "other") == {"redirect": b"content"}


def test_a_password_in_a_url_is_used_and_never_printed(server: FaultyServer, tmp_path: Path) -> None:
    server.objects["f"] = b"content"
    url = f"{server.url}/b/f".replace("://", "://me:s3%40cret@")
    stage_and_publish(settings(tmp_path / "data", {"url": url}))
    assert set(server.authorizations) == {"Basic bWU6czNAY3JldA=="}
    answers = [error(403, "AccessDenied"), (302, b"")]
    for number, answer in enumerate(answers):
        server.faults = [Faults("/b/f", answer, headers={"Location": url}, times=99)]
        code, output = run("copy", settings(tmp_path / str(number), {"url": url}))
        assert (code, "s3" in output, "me:" in output) == (78, False, False), output
    for odd in ("ftp://me:s3cret@host/f", "http://me:s3cret@host:port/f"):
        code, output = run("copy", settings(tmp_path / "odd", {"url": odd}))
        assert (code, "s3cret" in output) == (78, False), output
        code, output = run("copy", settings(tmp_path / "up", {"url": f"{server.url}/b/g"}, upload=odd))
        assert "s3cret" not in output


@pytest.mark.parametrize("text", ["gr\u00fcn".encode("latin-1"), "a".encode("utf-16")])
def test_sums_that_are_not_utf_8_are_reported(server: FaultyServer, tmp_path: Path, text: bytes) -> None:
    server.objects["data/SUMS"] = b"0" * 64 + b"  " + text
    source = {"url": "s3://b/data", "sums": "SUMS"}
    output = refused("copy", {**server.env, **settings(tmp_path / "d", source)})
    assert "SUMS of s3://b/data is not UTF-8: convert it" in output


@pytest.mark.parametrize(
    "row", ['{"bytes": 1, "sha256": "0"}', "[]", "{", '{"path": 1, "bytes": 1, "sha256": "0"}']
)
def test_a_row_of_a_manifest_that_is_none_is_reported(tmp_path: Path, row: str) -> None:
    text = f"{row}\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    header = {"files": 1, "bytes": 1, "sha256": digest, "identity": "i"}
    manifest = f"{json.dumps(header)}\n{text}"
    source = write(tmp_path / "source", {"MANIFEST.jsonl": manifest.encode()})
    copy = settings(tmp_path / "d", {"url": f"file://{source}"})
    for code, output in (run("verify", {}, str(source)), run("copy", copy)):
        assert code == 78
        assert "has no path, bytes and sha256" in output
        assert "line 2 of" in output


def test_credentials_that_are_still_valid_survive_a_provider_that_fails(
    server: FaultyServer, tmp_path: Path
) -> None:
    server.lives = 120
    provider = aws.CredentialsProvider(_irsa(server, tmp_path))
    first = provider.credentials()
    server.faults.append(Faults("POST /$", error(403, "AccessDenied"), times=9))
    assert provider.credentials() == first
    assert provider.credentials() == first
    assert server.count("POST /$") == 2, "a provider that failed is not asked at every request"


def test_credentials_that_s3_calls_expired_are_renewed(server: FaultyServer, tmp_path: Path) -> None:
    fault = Faults("GET /b/data/a", error(400, "ExpiredToken"))
    server.faults.append(fault)
    env = settings(tmp_path / "data", {"url": "s3://b/data"})
    stage_and_publish({**_irsa(server, tmp_path), **env})
    assert server.count("POST /$") == 2
    fault.times = 1
    output = refused("stage", {**server.env, **settings(tmp_path / "other", {"url": "s3://b/data"})}, code=77)
    assert "the credentials of the Secret have expired" in output


def test_an_object_that_changed_is_listed_again_by_the_next_attempt(
    server: FaultyServer, tmp_path: Path
) -> None:
    env = {**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"})}
    server.faults.append(Faults("GET /b/data/a", error(412, "PreconditionFailed")))
    output = refused("stage", env, code=75)
    assert "s3://b/data/a has changed since it was listed; the next attempt lists" in output
    server.faults.append(Faults("GET /b/data/b", error(404, "NoSuchKey")))
    assert run("stage", env)[0] in (0, 75)
    stage_and_publish(env)
    assert read(tmp_path / "data") == EXPECTED


def test_keys_with_signs_of_urls_are_not_cut(server: FaultyServer, tmp_path: Path) -> None:
    server.objects.update({"odd/a#1/f": b"hash", "odd/a?x/f": b"question", "odd/a/f": b"neighbour"})
    for number, (url, content) in enumerate({"odd/a#1": b"hash", "odd/a?x": b"question"}.items()):
        target = tmp_path / str(number) / "data"
        stage_and_publish({**server.env, **settings(target, {"url": f"s3://b/{url}"})})
        assert read(target) == {"f": content}


def test_an_expiring_redirect_is_asked_again(server: FaultyServer, tmp_path: Path) -> None:
    server.objects["large.zip"] = os.urandom(3 << 20)
    # The address of the first redirect has expired when the data is read.
    server.faults.append(Faults(r"GET .*\?n=1$", error(403, "AccessDenied"), times=99))
    stage_and_publish(settings(tmp_path / "data", {"url": f"{server.url}/redirect?to=large.zip"}))
    assert read(tmp_path / "data") == {"redirect": server.objects["large.zip"]}
    assert server.redirects > 1


def test_a_presigned_url_is_read_without_head(server: FaultyServer, tmp_path: Path) -> None:
    server.objects.update({"large.zip": os.urandom(3 << 20), "empty": b""})
    server.faults.append(Faults("^HEAD", error(403, "SignatureDoesNotMatch"), times=99))
    urls = [f"{server.url}/b/{name}?X-Amz-Signature=geheim" for name in ("large.zip", "empty")]
    stage_and_publish(settings(tmp_path / "data", *({"url": url} for url in urls)))
    assert read(tmp_path / "data") == {"large.zip": server.objects["large.zip"], "empty": b""}
    server.faults.append(Faults("^GET", error(403, "AccessDenied"), times=99))
    code, output = run("stage", settings(tmp_path / "other", {"url": urls[0]}))
    assert (code, "geheim" in output) == (78, False), output


def test_an_object_that_was_overwritten_since_it_was_listed_is_not_read(server: FaultyServer) -> None:
    source = S3Source("b", "data/a", server.env)
    (entry,) = source.entries()
    server.objects["data/a"] = b"z" * entry.size
    with pytest.raises(BiremeError, match="has changed since it was listed"), source.read(entry, 0, 100):
        pass


@pytest.mark.parametrize("has_if_match", [True, False])
def test_the_parts_of_two_versions_of_a_web_servers_file_are_not_joined(
    server: FaultyServer, has_if_match: bool
) -> None:
    server.objects["f"] = b"1" * 1000
    source = open_source(f"{server.url}/b/f", {})
    (entry,) = source.entries()
    server.objects["f"] = b"2" * 1000
    if not has_if_match:
        entry = type(entry)(entry.path, entry.size, f"W/{entry.version}", entry.key)
    with pytest.raises(BiremeError, match="has changed since it was listed"), source.read(entry, 0, 100):
        pass


def test_a_file_without_a_version_is_read_in_one_piece(server: FaultyServer, tmp_path: Path) -> None:
    server.objects["f"] = b"1" * (3 << 20)
    server.kept["f"] = {"ETag": ""}
    env = settings(tmp_path / "data", {"url": f"{server.url}/b/f"})
    server.faults.append(Faults("^GET", sent=lambda body: body[: 2 << 20]))
    code, output = run("stage", env)
    assert (code, "may be another file now" in output) == (75, True), output
    server.objects["f"] = b"2" * (3 << 20)
    stage_and_publish(env)
    assert read(tmp_path / "data") == {"f": b"2" * (3 << 20)}
    assert server.count("^GET") == 2


@pytest.mark.parametrize("name", ["a\nb", "a\x01b", "a\udcffb", "x" * 256, "/".join(["y" * 250] * 20)])
def test_names_that_a_claim_cannot_have_are_refused_by_a_sentence(
    server: FaultyServer, tmp_path: Path, name: str
) -> None:
    with pytest.raises(SourceError, match="rename it"):
        safe_path(name)
    if name.isascii():
        server.objects[f"odd/{name}"] = b"content"
        output = refused("stage", {**server.env, **settings(tmp_path / "d", {"url": "s3://b/odd"})})
        assert "rename it" in output


def test_the_longest_name_of_a_file_is_copied_and_a_key_of_a_folder_is_none(
    server: FaultyServer, tmp_path: Path
) -> None:
    server.objects.update({f"odd/{'x' * 255}": b"content", "odd/marker/": b""})
    stage_and_publish({**server.env, **settings(tmp_path / "d", {"url": "s3://b/odd"})})
    assert read(tmp_path / "d") == {"x" * 255: b"content"}


def test_files_are_on_the_disk_before_the_journal_says_so(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    real = os.fsync

    def fsync(file: int) -> None:
        real(file)
        synced.add(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    env = {**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"})}
    stage_from(settings_from(env), env, lambda _: None)
    staged = [tmp_path / ".data.staging" / path for path in EXPECTED]
    assert {file.stat().st_ino for file in staged} <= synced


def test_nothing_is_published_that_the_disk_has_not_taken(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def syncfs(descriptor: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    env = {**server.env, **settings(tmp_path / "data", {"url": "s3://b/data"})}
    wanted = settings_from(env)
    stage_from(wanted, env, lambda _: None)
    with monkeypatch.context() as failing:
        failing.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syncfs=syncfs))
        with pytest.raises(OSError, match="Input/output error"):
            publish_at(wanted, lambda _: None)
    assert not (tmp_path / "data").exists()
    assert publish_at(wanted, lambda _: None)
    assert (tmp_path / "data").exists()
