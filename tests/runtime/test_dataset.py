"""Staging a dataset: completely or not at all, continued after a kill, and identical to its source."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import http.server
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.dataset import manifest as dataset
from bireme_runtime.sources.checksums import compute
from bireme_runtime.sources.web.aws import Credentials, CredentialsProvider, sign
from bireme_runtime.sources.web.http import ConnectionPool
from bireme_runtime.sources.web.s3 import S3Source
from tests.runtime.datasets import (
    begin,
    content,
    ended,
    kill_when,
    read,
    refused,
    run,
    settings,
    stage_and_publish,
    upload,
    web_server,
    write,
)
from tests.runtime.etcd_servers import Proxy
from tests.runtime.faulty_servers import Faults, faulty_server
from tests.runtime.s3_servers import S3Server, s3_server
from tests.support.waiting import until

MiB = 1 << 20


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("moto") / "log") as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> str:
    """A new bucket."""
    name = "b" + hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    s3.put(name)
    return name


def test_a_bucket_is_copied_completely_and_a_second_install_copies_nothing(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    files = {**content(230), "large.rec": random.Random(1).randbytes(5 * MiB + 17), "empty": b""}
    upload(s3, bucket, files)
    target = tmp_path / "imagenet"
    env = {**s3.env, **settings(target, {"url": f"s3://{bucket}/imagenet"})}
    # As pods do, in processes of their own.
    (code, log), published = ended(begin("stage", env)), ended(begin("publish", env))
    assert (code, published[0]) == (0, 0), log
    assert read(target) == files
    assert "232 of 232 files" in log
    assert not list(tmp_path.glob(".*")), "nothing is left beside it"
    header, *rows = map(json.loads, (target / dataset.MANIFEST).read_text().splitlines())
    assert (header["files"], header["bytes"]) == (len(files), sum(map(len, files.values())))
    assert {row["path"]: row["sha256"] for row in rows} == {
        path: hashlib.sha256(data).hexdigest() for path, data in files.items()
    }
    before = (target / dataset.MANIFEST).stat().st_mtime_ns
    assert "nothing to copy" in stage_and_publish(env)
    assert (target / dataset.MANIFEST).stat().st_mtime_ns == before
    assert "is complete: 232 files" in ended(begin("verify", {}, str(target)))[1]


# As process 1 of a container it ends at SIGTERM only if it handles that, so the code is that of an exit.
@pytest.mark.parametrize(("by", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)])
def test_after_a_kill_only_the_rest_is_copied_and_the_target_is_never_partial(
    s3: S3Server, bucket: str, tmp_path: Path, by: int, code: int
) -> None:
    files = {**content(150, 20_000), "large.rec": random.Random(2).randbytes(12 * MiB)}
    upload(s3, bucket, files)
    target = tmp_path / "data"
    env = {**s3.env, **settings(target, {"url": f"s3://{bucket}/imagenet/"})}
    # More than the large file, and less than all.
    proxy = Proxy(int(s3.url.rpartition(":")[2]))
    proxy.budget = 14_000_000
    slow = begin("stage", {**env, "AWS_ENDPOINT_URL_S3": f"http://{proxy.endpoint}"})
    assert kill_when(lambda journal: journal.count("path") > 12, target, slow, by) == code
    proxy.mode = "refuse"
    proxy.close()
    log = stage_and_publish(env)
    copied = int(log.partition("is complete; ")[2].split()[0])
    assert 0 < copied < sum(map(len, files.values())) - 10 * 20_000
    assert read(target) == files


def test_an_object_with_a_wrong_checksum_is_reported_and_nothing_is_published(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    files = content(20)
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  ./{path}\n" for path, data in files.items())
    upload(s3, bucket, {**files, "SHA256SUMS": sums.encode()})
    broken = "train/n3/a b+10.bin"
    upload(s3, bucket, {broken: b"x" + files[broken][1:]})
    target = tmp_path / "data"
    env = {**s3.env, **settings(target, {"url": f"s3://{bucket}/imagenet", "sums": "SHA256SUMS"})}
    assert f"{broken} has sha256" in refused("stage", env)
    assert run("publish", env)[0] == 0
    assert not target.exists()
    upload(s3, bucket, {broken: files[broken]})
    stage_and_publish(env)
    assert read(target)[broken] == files[broken]


def test_concatenated_shards_are_their_source_byte_for_byte(tmp_path: Path) -> None:
    lines = b"".join(b"%d %s\n" % (number, b"x" * (number % 97)) for number in range(5000))
    source = write(tmp_path / "source", {"train.txt": lines, "vocabulary.txt": b"a\nb\n"})
    target = tmp_path / "words"
    shards = [{"file": "train.txt", "count": 3}]
    env = settings(target, {"url": f"file://{source}"}, shards=shards)
    stage_and_publish(env)
    names = [f"train.txt-{number:05d}" for number in range(3)]
    assert sorted(read(target)) == [*names, "vocabulary.txt"]
    assert b"".join((target / name).read_bytes() for name in names) == lines
    sizes = [(target / name).stat().st_size for name in names]
    assert max(sizes) - min(sizes) < 200
    rows = {
        row["path"]: row for row in map(json.loads, (target / dataset.MANIFEST).read_text().splitlines()[1:])
    }
    assert [rows[name]["records"] for name in names] == [
        (target / name).read_bytes().count(b"\n") for name in names
    ]
    assert "records" not in rows["vocabulary.txt"]
    assert "nothing to copy" in stage_and_publish(env)


def test_the_manifest_of_a_published_dataset_verifies_its_copy(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    first, second, third = (tmp_path / name / "data" for name in ("first", "second", "third"))
    stage_and_publish(settings(first, {"url": f"file://{tmp_path}/a"}))
    onward = settings(second, {"url": f"file://{first}"})
    # A worker of a training Indexed Job copies everything, whatever its index.
    code, output = run("copy", {**onward, "JOB_COMPLETION_INDEX": "3"}, trains=True)
    assert code == 0, output
    assert read(second) == {"a": b"one"}
    assert run("verify", {}, str(second))[0] == 0
    (first / "a").write_bytes(b"two")
    code, output = run("copy", settings(third, {"url": f"file://{first}"}), trains=True)
    assert code == 78
    assert "a has sha256" in output
    (first / "a").unlink()
    code, output = run("copy", settings(third, {"url": f"file://{first}"}), trains=True)
    assert code == 78
    assert "lacks a, which its MANIFEST.jsonl lists" in output
    assert not third.exists()


def test_a_dataset_is_also_uploaded_to_s3_and_only_missing_files_are_sent(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    files = {**content(20), "empty": b""}
    source = write(tmp_path / "source", files)
    place = f"s3://{bucket}/coco/2017"
    env = {**s3.env, **settings(tmp_path / "data", {"url": f"file://{source}"}, upload=place)}
    assert f"{place} has the dataset: 22 of 22 files were sent now" in stage_and_publish(env)
    assert "0 of 22 files were sent" in stage_and_publish(env)
    upload(s3, bucket, {"empty": b"", "train/n3/a b+10.bin": b"x" * 1010}, prefix="coco/2017/")
    assert "1 of 22 files were sent" in stage_and_publish(env)
    stage_and_publish({**s3.env, **settings(tmp_path / "back", {"url": place})})
    assert read(tmp_path / "back") == files


@pytest.mark.whole
def test_a_large_file_of_a_dataset_is_uploaded_once(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"large.tar": bytes(65 * MiB)})
    place = f"s3://{bucket}/tars"
    env = {**s3.env, **settings(tmp_path / "data", {"url": f"file://{source}"}, upload=place)}
    assert "2 of 2 files were sent" in stage_and_publish(env)
    (entry,) = (each for each in S3Source(bucket, "tars", s3.env).found() if each.path == "large.tar")
    assert (entry.size, entry.version[-2:]) == (65 * MiB, "-2")
    assert "0 of 2 files were sent" in stage_and_publish(env)


def test_a_large_file_is_uploaded_once_in_parts_with_the_checksum_that_s3_keeps_of_them(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    file = tmp_path / "large.tar"
    file.write_bytes(random.Random(1).randbytes(11 * MiB))
    place = S3Source(bucket, "tars", s3.env, part_bytes=5 * MiB)
    place.put(file.name, file)
    (entry,) = place.found()
    assert (entry.size, entry.version) == (11 * MiB, place.tag(file)), "it is there for the next upload"
    assert entry.version.endswith("-3")
    with place.read(entry, 0, entry.size) as body:
        assert body.read(entry.size) == file.read_bytes()
        assert body.checksum is None
    (checksum,) = place.checksums(entry)
    assert checksum.parts == (5 * MiB, 5 * MiB, MiB)
    digest = checksum.new()
    compute(file, [digest])
    assert digest.digest() == checksum.value
    stage_and_publish({**s3.env, **settings(tmp_path / "data", {"url": f"s3://{bucket}/tars"})})


def test_the_parts_of_a_failed_upload_are_deleted(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    class Gone(Exception):
        pass

    class Breaking(ConnectionPool):
        def request(self, url: str, *rest: Any) -> Any:
            if "partNumber=2" in url:
                raise Gone
            return super().request(url, *rest)

    file = tmp_path / "large.tar"
    file.write_bytes(bytes(6 * MiB))
    place = S3Source(bucket, "", s3.env, pool=Breaking(), part_bytes=5 * MiB)
    with pytest.raises(Gone):
        place.put(file.name, file)
    with urllib.request.urlopen(f"{s3.url}/{bucket}?uploads", timeout=30) as answer:
        assert b"<Upload>" not in answer.read()
    assert list(place.found()) == []


@pytest.mark.parametrize("text", ["{}\n", "some words", ""])
def test_a_foreign_manifest_is_reported(tmp_path: Path, text: str) -> None:
    source = write(tmp_path / "source", {"a": b"one", dataset.MANIFEST: text.encode()})
    output = refused("stage", settings(tmp_path / "data", {"url": f"file://{source}"}))
    assert "is not a manifest of charts/dataset, which reserves this name" in output


def test_a_folder_with_a_foreign_manifest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "out/data").mkdir(parents=True)
    (tmp_path / "out/data" / dataset.MANIFEST).write_text("some words")
    output = refused("stage", settings(tmp_path / "out/data", {"url": f"file://{tmp_path}/a"}))
    assert "has files that are not of a dataset" in output


def test_what_a_kill_after_the_rename_has_left_is_deleted_by_the_next_attempt(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    env = settings(tmp_path / "out/data", {"url": f"file://{tmp_path}/a"})
    stage_and_publish(env)
    for left in ("out/.data.old/n1", "out/data/.bireme/parts"):
        (tmp_path / left).mkdir(parents=True)
    assert "nothing to copy" in stage_and_publish(env)
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["data"]
    assert sorted(each.name for each in (tmp_path / "out/data").iterdir()) == [dataset.MANIFEST, "a"]


def test_more_shards_than_lines_are_refused(tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_bytes(b"one\ntwo\n")
    env = settings(
        tmp_path / "out/data", {"url": f"file://{tmp_path}/few.txt"}, shards=[{"file": "few.txt", "count": 3}]
    )
    assert run("stage", env)[0] == 0
    code, output = run("publish", env)
    assert (code, output) == (78, "bireme dataset: few.txt has too few lines for 3 shards\n")
    assert not (tmp_path / "out/data").exists()


def test_two_indexes_share_the_work_and_one_publishes(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    files = content(40)
    upload(s3, bucket, files)
    target = tmp_path / "data"
    env = {**s3.env, **settings(target, {"url": f"s3://{bucket}/imagenet"}, workers=2)}
    first = begin("stage", {**env, "JOB_COMPLETION_INDEX": "0"})
    code, output = run("stage", {**env, "JOB_COMPLETION_INDEX": "1"})
    assert (code, ended(first)[0]) == (0, 0)
    assert "20 of 20 files" in output
    assert run("publish", {**env, "JOB_COMPLETION_INDEX": "1"}) == (0, "")
    assert not target.exists()
    assert run("publish", {**env, "JOB_COMPLETION_INDEX": "0"})[0] == 0
    assert read(target) == files


def test_processes_that_copy_the_same_at_once_publish_it_once_and_whole(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {f"file-{number}": bytes(3000 + number) for number in range(30)})
    (source / "words").write_text("".join(f"line {number}\n" for number in range(3000)))
    for number in range(2):
        target = tmp_path / f"data-{number}"
        env = settings(target, {"url": f"file://{source}"}, shards=[{"file": "words", "count": 3}])
        copies = [begin("copy", env) for _ in range(3)]
        assert [ended(each)[0] for each in copies] == [0, 0, 0]
        code, said = run("verify", {}, str(target))
        assert code == 0, said
    assert not list(tmp_path.glob(".data-*")), "nothing is left beside the datasets"


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_a_pod_that_prepares_keeps_others_away_until_it_ends(tmp_path: Path) -> None:
    source = {"url": f"file://{write(tmp_path / 'source', {'file': b'content'})}"}
    env = settings(tmp_path / "data", source, prepare="arrange")
    held = settings(tmp_path / "data", source, prepare="arrange", held=True)
    has_lock = tmp_path / "held"
    has_lock.touch()
    with (tmp_path / ".data.lock-0").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        hold = begin("hold", held, str(has_lock))
        assert "waiting for another process" in first_line(hold)
        assert not has_lock.exists()
    until(has_lock.exists)
    with begin("copy", env) as other:
        assert "waiting for another process that copies to" in first_line(other)
        assert run("stage", held)[0] == 0
        assert run("publish", held)[0] == 0
        hold.terminate()
        _, said = other.communicate(timeout=120)
        assert (other.returncode, hold.wait(120)) == (0, 0)
    assert "has this dataset already" in said
    assert not list(tmp_path.glob(".data.*"))


def test_a_file_that_a_script_changed_is_copied_again_before_the_next_attempt(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": b"one", "b": b"one"})
    env = settings(tmp_path / "data", {"url": f"file://{source}"}, prepare="arrange")
    assert run("stage", env)[0] == 0
    # A script that was killed after it had changed one file, whose size is as before.
    changed = tmp_path / ".data.staging" / "a"
    changed.write_text("two")
    code, said = run("stage", env)
    assert (code, changed.read_text()) == (0, "one")
    assert "3 bytes were copied now" in said


def test_changes_between_stage_and_publish_are_part_of_the_dataset(tmp_path: Path) -> None:
    source, target = write(tmp_path / "source", {"val_1.jpg": b"picture"}), tmp_path / "data"
    env = settings(target, {"url": f"file://{source}"}, prepare="arrange")
    assert run("stage", env)[0] == 0
    staging = tmp_path / ".data.staging"
    (staging / "val/n01").mkdir(parents=True)
    (staging / "val_1.jpg").rename(staging / "val/n01/val_1.jpg")
    assert run("publish", env)[0] == 0
    assert read(target) == {"val/n01/val_1.jpg": b"picture"}
    assert run("verify", {}, str(target))[0] == 0


def test_an_existing_dataset_is_replaced_only_with_replace(tmp_path: Path) -> None:
    source, target = write(tmp_path / "source", {"a": b"one"}), tmp_path / "data"
    stage_and_publish(settings(target, {"url": f"file://{source}"}))
    (source / "a").write_bytes(b"three")
    output = refused("stage", settings(target, {"url": f"file://{source}"}))
    assert "has another dataset, or another version of it" in output
    assert read(target) == {"a": b"one"}
    stage_and_publish(settings(target, {"url": f"file://{source}"}, replace=True))
    assert read(target) == {"a": b"three"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "source"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda folder: (folder / "a").write_bytes(b"tw0"), "a has another sha256 than in MANIFEST.jsonl"),
        (lambda folder: (folder / "a").unlink(), "a is missing"),
        (lambda folder: (folder / "a").write_bytes(b"long"), "a has 4 bytes instead of 3"),
        (lambda folder: (folder / dataset.MANIFEST).unlink(), "is not a dataset"),
    ],
)
def test_verify_reports_each_changed_file(
    tmp_path: Path, change: Callable[[Path], object], sentence: str
) -> None:
    (tmp_path / "a").write_bytes(b"two")
    target = tmp_path / "out/data"
    stage_and_publish(settings(target, {"url": f"file://{tmp_path}/a"}))
    (tmp_path / "b").write_bytes(b"three")
    stage_and_publish(settings(tmp_path / "out/other", {"url": f"file://{tmp_path}/b"}))
    change(target)
    assert sentence in refused("verify", {}, str(tmp_path / "out/other"), str(target))


def test_verify_says_of_a_file_whether_it_is_there(tmp_path: Path) -> None:
    weights = tmp_path / "R50.npz"
    assert run("verify", {}, str(weights), "--quick") == (78, f"bireme dataset: {weights} is not there\n")
    weights.write_bytes(b"four")
    assert run("verify", {}, str(weights)) == (0, f"bireme dataset: {weights} is there: 4 bytes\n")


def test_an_interrupted_response_is_continued_where_it_ended(tmp_path: Path) -> None:
    whole = random.Random(3).randbytes(2 * MiB + 5)
    with faulty_server({"coco.zip": whole}) as server:
        server.faults.append(Faults("GET", sent=lambda body: body[:300_000], times=99))
        source = {
            "url": f"{server.url}/b/coco.zip",
            "path": "data",
            "sha256": hashlib.sha256(whole).hexdigest(),
        }
        stage_and_publish(settings(tmp_path / "data", source))
    assert read(tmp_path / "data") == {"data/coco.zip": whole}


def test_a_file_of_a_web_server_is_copied(tmp_path: Path) -> None:
    folder = str(write(tmp_path / "web", {"train.txt": b"words\n"}))
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with web_server(functools.partial(quiet, directory=folder)) as port:
        url = f"http://127.0.0.1:{port}"
        stage_and_publish(settings(tmp_path / "data", {"url": f"{url}/train.txt"}))
        code, output = run("stage", settings(tmp_path / "other", {"url": f"{url}/nothing.txt"}))
    assert read(tmp_path / "data") == {"train.txt": b"words\n"}
    assert code == 78
    assert "HTTP 404" in output


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (os.mkfifo, "odd is a pipe, a socket or a device, and has no content to copy: move it away"),
        (listen, "odd is a pipe, a socket or a device"),
        (lambda path: path.symlink_to("nothing"), "odd is a link to nothing, which is not there"),
        (lambda path: path.symlink_to("odd"), "odd is a link to odd, which is not there"),
        (lambda path: path.symlink_to("../token"), "odd is a link to ../token, out of the source"),
        (lambda path: path.symlink_to("/dev/zero"), "odd is a link to /dev/zero, out of the source"),
        (lambda path: path.symlink_to(path.parents[1] / "source-2/a"), "source-2/a, out of the source"),
    ],
)
def test_what_is_no_file_of_a_source_folder_is_named_and_nothing_is_published(
    tmp_path: Path, make: Callable[[Path], object], sentence: str
) -> None:
    write(tmp_path, {"source/a": b"one", "source-2/a": b"one", "token": b"TOKEN"})
    make(tmp_path / "source/odd")
    assert sentence in refused("copy", settings(tmp_path / "data", {"url": f"file://{tmp_path}/source"}))
    assert not (tmp_path / "data").exists()


def test_links_to_files_of_the_source_are_copied_as_files(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"blobs/1": b"one"})
    (source / "snapshot").mkdir()
    (source / "snapshot/model").symlink_to("../blobs/1")
    # A claim's folder may itself be reached by a link.
    (tmp_path / "link").symlink_to("source")
    stage_and_publish(settings(tmp_path / "data", {"url": f"file://{tmp_path}/link"}))
    assert read(tmp_path / "data") == {"blobs/1": b"one", "snapshot/model": b"one"}


BUCKET = "is not s3://BUCKET/PREFIX: instead of an ARN, give the bucket's name"
NO_URL = "is no URL: its host or its port cannot be read"
NO_REMOTE = "is not rclone://REMOTE/PATH"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("file:///dev/zero", "/dev/zero is a pipe, a socket or a device"),
        ("ftp://host/file", "ftp://host/file is neither"),
        ("file:///nowhere", "/nowhere does not exist"),
        ("s3://fast--use1-az4--x-s3/data", "s3://fast--use1-az4--x-s3 is a directory bucket"),
        ("s3://arn:aws:s3:::bucket/train", f"s3://arn:aws:s3:::bucket/train {BUCKET}"),
        ("s3://arn:aws:s3:us-west-2:123456789012:accesspoint/ap/x", f":accesspoint/ap/x {BUCKET}"),
        ("s3://a b/c", f"s3://a b/c {BUCKET}"),
        ("http://host:port/f", f"http://host:port/f {NO_URL}"),
        ("http://[::1/f", f"http://[::1/f {NO_URL}"),
        ("http://a..b/f", f"http://a..b/f {NO_URL}"),
        ("rclone://:s3,env_auth:b/p", f"rclone://:s3,env_auth:b/p {NO_REMOTE}"),
        ("rclone:///p", f"rclone:///p {NO_REMOTE}"),
        ("rclone://a b/p", f"rclone://a b/p {NO_REMOTE}"),
        ("rclone://gcs/b]ad", f"rclone://gcs/b]ad {NO_REMOTE}"),
    ],
)
def test_a_url_that_is_no_source_is_told(tmp_path: Path, url: str, sentence: str) -> None:
    assert sentence in refused("stage", settings(tmp_path / "data", {"url": url}))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"sources": [{"url": "file:///etc/hostname"}] * 2}, "comes from two sources"),
        ({"sources": [{"url": "file:///etc/hostname", "path": "../up"}]}, "is not a path below a folder"),
        ({"upload": "file:///tmp"}, "file:///tmp is not s3://BUCKET/PREFIX"),
        ({"upload": "s3://arn:aws:s3:::bucket/train"}, f"s3://arn:aws:s3:::bucket/train {BUCKET}"),
    ],
)
def test_other_settings_that_cannot_be_used_are_told(
    tmp_path: Path, more: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused("copy", settings(tmp_path / "data", {"url": "file:///etc/hostname"}, **more))


def test_a_bucket_without_objects_or_credentials_is_reported(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    env = settings(tmp_path / "data", {"url": f"s3://{bucket}/nothing"})
    code, output = run("stage", {**s3.env, **env})
    assert (code, output) == (78, f"bireme dataset: s3://{bucket}/nothing has no objects\n")
    bare = {name: value for name, value in s3.env.items() if "KEY" not in name}
    output = refused("stage", {**bare, **env, "AWS_EC2_METADATA_DISABLED": "true"}, code=77)
    assert "there are no AWS credentials" in output


def test_a_request_is_signed_as_in_the_example_of_amazons_documentation() -> None:
    """docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html, GET of an object."""
    keys = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    host, headers = "examplebucket.s3.amazonaws.com", {"range": "bytes=0-9"}
    signed = sign(host, "/test.txt", "", headers, keys, "us-east-1", 1369353600)
    signature = signed["authorization"].rpartition("Signature=")[2]
    assert signature == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"


def test_a_role_by_irsa_gives_keys_that_expire(s3: S3Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a.b.c")
    env = {name: value for name, value in s3.env.items() if "KEY" not in name}
    env |= {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token")}
    env |= {"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/dataset"}
    keys = CredentialsProvider(env).credentials()
    assert keys.key
    assert keys.token
    assert 0 < keys.expires - time.time() <= 12 * 3600


def test_pod_identity_gives_keys_for_its_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-token\n")
    with faulty_server({}) as server:
        env = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/credentials"}
        provider = CredentialsProvider(
            {**env, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token")}
        )
        assert provider.credentials() == provider.credentials()
        assert (provider.credentials().key, server.authorizations) == ("A", ["secret-token"])
