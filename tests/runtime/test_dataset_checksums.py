"""Objects are compared with what S3 keeps of them: checksums of the whole, or of the parts of an upload."""

from __future__ import annotations

import base64
import hashlib
import itertools
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from awscrt import checksums

from bireme_runtime.sources.checksums import Checksum
from tests.runtime.datasets import begin, ended, read, refused, run, settings, stage_and_publish
from tests.runtime.etcd_servers import RUNTIME
from tests.runtime.faulty_servers import Faults, FaultyServer, error, faulty_server, flipped

KMS = {"x-amz-server-side-encryption": "aws:kms"}
# Above and below partMiB of the tests, which is 1.
LARGE, SMALL = 3 << 20, 300_000
CONTENT = {"data/large": random.Random(1).randbytes(LARGE), "data/small": random.Random(2).randbytes(SMALL)}


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


def crc32(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big")


def crc32c(data: bytes) -> bytes:
    return checksums.crc32c(data).to_bytes(4, "big")


def crc64nvme(data: bytes) -> bytes:
    return checksums.crc64nvme(data).to_bytes(8, "big")


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server(dict(CONTENT)) as found:
        yield found


def env_of(server: FaultyServer, folder: Path) -> dict[str, str]:
    return {**server.env, **settings(folder / "data", {"url": "s3://b/data"})}


def all_is_there(folder: Path) -> bool:
    return read(folder / "data") == {key[5:]: content for key, content in CONTENT.items()}


def in_parts(content: bytes, sizes: tuple[int, ...], digest: Callable[[bytes], bytes]) -> str:
    """The checksum that S3 keeps of an upload in parts."""
    ends = list(itertools.accumulate(sizes))
    parts = (content[end - size : end] for size, end in zip(sizes, ends, strict=True))
    return f"{base64.b64encode(digest(b''.join(map(digest, parts)))).decode()}-{len(sizes)}"


def upload(
    server: FaultyServer, sizes: Callable[[int], tuple[int, ...]], digest: Callable[[bytes], bytes] | None
) -> None:
    """Let the objects have been uploaded in parts: with a digest, or with none but the MD5 of the tag."""
    for key, content in server.objects.items():
        server.parts[key] = sizes(len(content))
        if digest:
            checksum = in_parts(content, server.parts[key], digest)
            server.kept[key] = {**KMS, f"x-amz-checksum-{digest.__name__}": checksum}


def equal(size: int) -> tuple[int, ...]:
    step = size // 3 + 7
    return (step, step, size - 2 * step)


def odd(size: int) -> tuple[int, ...]:
    """As many parts as equal ones would be, and the first one as long as theirs."""
    step = size // 3 + 7
    return (step, step - 100, size - 2 * step + 100)


def larger(size: int) -> tuple[int, ...]:
    """The last part is larger than the first."""
    return (size // 3, size - size // 3)


def one(size: int) -> tuple[int, ...]:
    return (size,)


def change(server: FaultyServer, key: str) -> None:
    """Let the server send other bytes under the same tag."""
    right = server.tag(key)
    content = bytearray(server.objects[key])
    content[len(content) // 2] ^= 1
    server.objects[key] = bytes(content)
    server.tags[key] = right


@pytest.mark.parametrize(
    ("sizes", "digest"),
    [
        (equal, None),
        (odd, None),
        (one, None),
        (larger, None),
        (odd, sha256),
        (equal, crc32c),
    ],
)
def test_objects_uploaded_in_parts_are_compared(
    server: FaultyServer,
    tmp_path: Path,
    sizes: Callable[[int], tuple[int, ...]],
    digest: Callable[[bytes], bytes] | None,
) -> None:
    upload(server, sizes, digest)
    stage_and_publish(env_of(server, tmp_path))
    assert all_is_there(tmp_path)
    for key in CONTENT:
        server.objects = dict(CONTENT)
        server.tags.clear()
        change(server, key)
        output = refused("copy", env_of(server, tmp_path / key[5:]))
        assert f"{key[5:]} has {digest.__name__.upper() if digest else 'MD5'} of " in output
        assert not (tmp_path / key[5:] / "data").exists()


@pytest.mark.parametrize("digest", [sha256, sha1, crc32, crc32c, crc64nvme])
def test_objects_with_a_checksum_of_the_whole_are_compared(
    server: FaultyServer, tmp_path: Path, digest: Callable[[bytes], bytes]
) -> None:
    for key, content in CONTENT.items():
        checksum = base64.b64encode(digest(content)).decode()
        server.kept[key] = {**KMS, f"x-amz-checksum-{digest.__name__}": checksum}
    server.parts["data/large"] = equal(LARGE)
    server.kept["data/large"] = {**server.kept["data/large"], "x-amz-checksum-type": "FULL_OBJECT"}
    stage_and_publish(env_of(server, tmp_path))
    assert not server.count("HEAD /b/data/small"), "GET brings the checksum of a small object"
    change(server, "data/large")
    assert f"large has {digest.__name__.upper()} " in refused("copy", env_of(server, tmp_path / "other"))


def test_a_large_object_that_was_sent_at_once_has_its_md5_compared(
    server: FaultyServer, tmp_path: Path
) -> None:
    change(server, "data/large")
    assert "large has MD5 " in refused("copy", env_of(server, tmp_path))
    # What was wrong is not taken for a part of the next attempt.
    server.objects, server.tags = dict(CONTENT), {}
    stage_and_publish(env_of(server, tmp_path))


@pytest.mark.parametrize("key", CONTENT)
def test_what_was_corrupted_on_its_way_is_copied_again(
    server: FaultyServer, tmp_path: Path, key: str
) -> None:
    server.faults.append(Faults(f"GET /b/{key}", sent=flipped))
    log = stage_and_publish(env_of(server, tmp_path))
    assert f"{key[5:]} has MD5 " in log
    assert "copying it again" in log
    assert all_is_there(tmp_path)


@pytest.mark.parametrize("answer", [error(503, "SlowDown"), (200, b"")])
@pytest.mark.parametrize("pattern", ["HEAD /b/data/large$", "HEAD /b/data/large.partNumber=1"])
def test_an_answer_that_fails_once_leaves_no_file_unchecked(
    server: FaultyServer, tmp_path: Path, pattern: str, answer: tuple[int, bytes]
) -> None:
    upload(server, larger, None)
    server.faults.append(Faults("GET /b/data/large", sent=flipped))
    server.faults.append(Faults(pattern, answer))
    log = stage_and_publish(env_of(server, tmp_path))
    assert "large has MD5 of 2 parts" in log
    assert all_is_there(tmp_path)


def test_parts_that_an_earlier_attempt_corrupted_are_copied_again(
    server: FaultyServer, tmp_path: Path
) -> None:
    env = {**env_of(server, tmp_path), **settings(tmp_path / "data", {"url": "s3://b/data"}, parallel=1)}
    server.faults.append(Faults("GET /b/data/large", sent=flipped))
    server.faults.append(Faults("GET /b/data/large", error(403, "AccessDenied"), first=1))
    assert run("stage", env)[0] == 78
    before = server.count("GET /b/data/large")
    log = stage_and_publish(env)
    assert "copying it again" in log
    # The part that was missing, and then all three.
    assert server.count("GET /b/data/large") == before + 4
    assert all_is_there(tmp_path)


def test_without_a_checksum_that_the_image_computes_the_size_counts(
    server: FaultyServer, tmp_path: Path
) -> None:
    upload(server, equal, None)
    for key in CONTENT:
        server.kept[key] = {**KMS, "x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}
    # As in an image without awscrt.
    (tmp_path / "awscrt.py").touch()
    env = {**env_of(server, tmp_path), "PYTHONPATH": f"{tmp_path}:{RUNTIME}"}
    code, log = ended(begin("copy", env))
    assert code == 0
    assert "of 2 files the source has no checksum that can be computed here: their sizes are compared" in log


def test_a_digest_in_the_values_counts_more_than_what_s3_keeps(server: FaultyServer, tmp_path: Path) -> None:
    upload(server, equal, None)
    for key in CONTENT:
        # A server whose tags are made in another way.
        server.tags[key] = f"{'0' * 32}-3"
    lines = (f"{hashlib.sha256(content).hexdigest()}  {key[5:]}\n" for key, content in CONTENT.items())
    server.objects["data/SUMS"] = "".join(lines).encode()
    env = settings(tmp_path / "data", {"url": "s3://b/data", "sums": "SUMS"})
    assert run("copy", {**server.env, **env})[0] == 0
    assert run("copy", env_of(server, tmp_path / "without"))[0] == 78


def test_a_server_that_does_not_know_parts_is_used_without_checksums(
    server: FaultyServer, tmp_path: Path
) -> None:
    upload(server, equal, None)
    server.faults.append(Faults("partNumber=", error(400, "InvalidArgument"), times=99))
    stage_and_publish(env_of(server, tmp_path))


def test_parts_may_end_anywhere_in_what_is_read(tmp_path: Path) -> None:
    content = random.Random(3).randbytes(100)
    sizes = (1, 30, 30, 39)
    digest = Checksum("crc32", b"", sizes).new()
    for at in range(0, 100, 7):
        digest.update(content[at : at + 7])
    assert in_parts(content, sizes, crc32) == f"{base64.b64encode(digest.digest()).decode()}-4"
