"""Staging a dataset: completely or not at all, continued after a kill, and identical to its source."""

from __future__ import annotations

import contextlib
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
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.dataset import manifest as dataset
from bireme_runtime.sources.web.aws import Credentials, CredentialsProvider, sign
from bireme_runtime.sources.web.http import ConnectionPool
from bireme_runtime.sources.web.s3 import S3Source
from tests.runtime.etcd_servers import RUNTIME, Proxy
from tests.runtime.s3_servers import S3Server, s3_server
from tests.support.waiting import until

MiB = 1 << 20
Content = dict[str, bytes]


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


def content(files: int, size: int = 1000, seed: int = 0) -> Content:
    """Small files in a few folders, some with names that need quoting."""
    chance = random.Random(seed)
    return {
        f"train/n{number % 7}/a b+{number}.bin": chance.randbytes(size + number) for number in range(files)
    }


def upload(s3: S3Server, bucket: str, files: Mapping[str, bytes], prefix: str = "imagenet/") -> None:
    for path, data in files.items():
        s3.put(f"{bucket}/{prefix}{path}".replace(" ", "%20").replace("+", "%2B"), data)


def settings(target: Path, *sources: Mapping[str, Any], **more: Any) -> dict[str, str]:
    values = {"target": str(target), "sources": list(sources), "parallel": 4, "partMiB": 1, **more}
    return {"BIREME_DATASET": json.dumps(values)}


def run(step: str, env: Mapping[str, str], *args: str, trains: bool = False) -> tuple[int, str]:
    """Run one step in a process, as in a pod, or in one that trains; returns its exit code and its log."""
    module = "bireme_runtime.dataset" + ("" if trains or step == "verify" else ".claim")
    command = [sys.executable, "-m", module, step, *args]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(RUNTIME), **env}, capture_output=True, text=True, check=False
    )
    assert not done.stdout, done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


def stage_and_publish(env: Mapping[str, str]) -> str:
    log = ""
    for step in ("stage", "publish"):
        code, output = run(step, env)
        log += output
        assert code == 0, log
    return log


def read(folder: Path) -> Content:
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != dataset.MANIFEST)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_a_bucket_is_copied_completely_and_a_second_install_copies_nothing(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    files = {**content(230), "large.rec": random.Random(1).randbytes(5 * MiB + 17), "empty": b""}
    upload(s3, bucket, files)
    target = tmp_path / "imagenet"
    env = {**s3.env, **settings(target, {"url": f"s3://{bucket}/imagenet"})}
    log = stage_and_publish(env)
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
    assert "is complete: 232 files" in run("verify", {}, str(target))[1]


def test_after_a_kill_only_the_rest_is_copied_and_the_target_is_never_partial(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    files = {**content(150, 20_000), "large.rec": random.Random(2).randbytes(12 * MiB)}
    upload(s3, bucket, files)
    target = tmp_path / "data"
    env = {**s3.env, **settings(target, {"url": f"s3://{bucket}/imagenet/"})}
    # More than the large file, and less than all.
    proxy = Proxy(int(s3.url.rpartition(":")[2]))
    proxy.budget = 14_000_000
    slow = {**env, "AWS_ENDPOINT_URL_S3": f"http://{proxy.endpoint}"}
    command = [sys.executable, "-m", "bireme_runtime.dataset.claim", "stage"]
    process = subprocess.Popen(command, env={"PYTHONPATH": str(RUNTIME), **slow}, stderr=subprocess.DEVNULL)
    journal = tmp_path / ".data.staging/.bireme/journal-0.jsonl"
    deadline = time.monotonic() + 120
    while not (journal.exists() and journal.read_text().count("path") > 12):
        assert time.monotonic() < deadline
        assert process.poll() is None, "it was done before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    proxy.mode = "refuse"
    proxy.close()
    assert not target.exists()
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
    code, output = run("stage", env)
    assert code == 78, output
    assert f"{broken} has sha256" in output
    assert run("publish", env)[0] == 0
    assert not target.exists()
    upload(s3, bucket, {broken: files[broken]})
    stage_and_publish(env)
    assert read(target)[broken] == files[broken]


def test_concatenated_shards_are_their_source_byte_for_byte(tmp_path: Path) -> None:
    lines = b"".join(b"%d %s\n" % (number, b"x" * (number % 97)) for number in range(5000))
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.txt").write_bytes(lines)
    (source / "vocabulary.txt").write_bytes(b"a\nb\n")
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
    for path, data in files.items():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_bytes(data)
    place = f"s3://{bucket}/coco/2017"
    env = {**s3.env, **settings(tmp_path / "data", {"url": f"file://{tmp_path}/source"}, upload=place)}
    assert f"{place} has the dataset: 22 of 22 files were sent now" in stage_and_publish(env)
    assert "0 of 22 files were sent" in stage_and_publish(env)
    upload(s3, bucket, {"empty": b"", "train/n3/a b+10.bin": b"x" * 1010}, prefix="coco/2017/")
    assert "1 of 22 files were sent" in stage_and_publish(env)
    stage_and_publish({**s3.env, **settings(tmp_path / "back", {"url": place})})
    assert read(tmp_path / "back") == files


def test_a_large_file_of_a_dataset_is_uploaded_once(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "large.tar").write_bytes(bytes(65 * MiB))
    place = f"s3://{bucket}/tars"
    env = {**s3.env, **settings(tmp_path / "data", {"url": f"file://{tmp_path}/source"}, upload=place)}
    assert "2 of 2 files were sent" in stage_and_publish(env)
    (entry,) = (each for each in S3Source(bucket, "tars", s3.env).found() if each.path == "large.tar")
    assert (entry.size, entry.version[-2:]) == (65 * MiB, "-2")
    assert "0 of 2 files were sent" in stage_and_publish(env)


def test_a_large_file_is_uploaded_in_parts(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    file = tmp_path / "large.tar"
    file.write_bytes(random.Random(1).randbytes(11 * MiB))
    place = S3Source(bucket, "tars", s3.env, part_bytes=5 * MiB)
    place.put(file.name, file)
    (entry,) = place.found()
    assert (entry.size, entry.version) == (11 * MiB, place.tag(file))
    assert entry.version.endswith("-3")
    with place.read(entry, 0, entry.size) as body:
        assert body.read(entry.size) == file.read_bytes()
        assert body.checksum is None


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


def test_an_upload_url_that_is_not_in_s3_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    env = settings(tmp_path / "out/data", {"url": f"file://{tmp_path}/a"}, upload="file:///tmp")
    code, output = run("copy", env)
    assert code == 78
    assert "file:///tmp is not s3://BUCKET/PREFIX" in output


@pytest.mark.parametrize("text", ["{}\n", "some words", ""])
def test_a_foreign_manifest_is_reported(tmp_path: Path, text: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(b"one")
    (source / dataset.MANIFEST).write_text(text)
    code, output = run("stage", settings(tmp_path / "data", {"url": f"file://{source}"}))
    assert code == 78
    assert "is not a manifest of charts/dataset, which reserves this name" in output


def test_a_folder_with_a_foreign_manifest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "out/data").mkdir(parents=True)
    (tmp_path / "out/data" / dataset.MANIFEST).write_text("some words")
    code, output = run("stage", settings(tmp_path / "out/data", {"url": f"file://{tmp_path}/a"}))
    assert code == 78
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
    first = threading.Thread(target=run, args=("stage", {**env, "JOB_COMPLETION_INDEX": "0"}))
    first.start()
    code, output = run("stage", {**env, "JOB_COMPLETION_INDEX": "1"})
    first.join()
    assert code == 0
    assert "20 of 20 files" in output
    assert run("publish", {**env, "JOB_COMPLETION_INDEX": "1"}) == (0, "")
    assert not target.exists()
    assert run("publish", {**env, "JOB_COMPLETION_INDEX": "0"})[0] == 0
    assert read(target) == files


def test_processes_that_copy_the_same_at_once_publish_it_once_and_whole(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(30):
        (source / f"file-{number}").write_bytes(bytes(3000 + number))
    (source / "words").write_text("".join(f"line {number}\n" for number in range(3000)))
    command = [sys.executable, "-m", "bireme_runtime.dataset.claim", "copy"]
    for number in range(5):
        target = tmp_path / f"data-{number}"
        shards = [{"file": "words", "count": 3}]
        env = {"PYTHONPATH": str(RUNTIME), **settings(target, {"url": f"file://{source}"}, shards=shards)}
        copies = [subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) for _ in range(3)]
        assert [each.wait(120) for each in copies] == [0, 0, 0]
        code, said = run("verify", {}, str(target))
        assert code == 0, said
    assert not list(tmp_path.glob(".data-*")), "nothing is left beside the datasets"


def begin(env: Mapping[str, str], *command: str) -> subprocess.Popen[str]:
    """Start a step, as in a pod."""
    return subprocess.Popen(
        [sys.executable, "-m", "bireme_runtime.dataset.claim", *command],
        env={"PYTHONPATH": str(RUNTIME), **env},
        stderr=subprocess.PIPE,
        text=True,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_a_copy_says_that_it_waits_for_another_one(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("content")
    with (tmp_path / ".data.lock-0").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with begin(settings(tmp_path / "data", {"url": f"file://{source}"}), "copy") as copy:
            assert "waiting for another process that copies to" in first_line(copy)
            assert not (tmp_path / "data").exists()
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert copy.wait(120) == 0
    assert (tmp_path / "data" / "file").read_text() == "content"


def test_a_pod_that_prepares_keeps_others_away_until_it_ends(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("content")
    source = {"url": f"file://{tmp_path / 'source'}"}
    env = settings(tmp_path / "data", source, prepare="arrange")
    held = settings(tmp_path / "data", source, prepare="arrange", held=True)
    has_lock = tmp_path / "held"
    has_lock.touch()
    with (tmp_path / ".data.lock-0").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        hold = begin(held, "hold", str(has_lock))
        assert "waiting for another process" in first_line(hold)
        assert not has_lock.exists()
    until(has_lock.exists)
    with begin(env, "copy") as other:
        assert "waiting for another process" in first_line(other)
        assert run("stage", held)[0] == 0
        assert run("publish", held)[0] == 0
        hold.terminate()
        _, said = other.communicate(timeout=120)
        assert (other.returncode, hold.wait(120)) == (0, 0)
    assert "has this dataset already" in said
    assert not list(tmp_path.glob(".data.*"))


def test_a_file_that_a_script_changed_is_copied_again_before_the_next_attempt(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for name in ("a", "b"):
        (tmp_path / "source" / name).write_text("one")
    env = settings(tmp_path / "data", {"url": f"file://{tmp_path / 'source'}"}, prepare="arrange")
    assert run("stage", env)[0] == 0
    # A script that was killed after it had changed one file, whose size is as before.
    changed = tmp_path / ".data.staging" / "a"
    changed.write_text("two")
    code, said = run("stage", env)
    assert (code, changed.read_text()) == (0, "one")
    assert "3 bytes were copied now" in said


def test_changes_between_stage_and_publish_are_part_of_the_dataset(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "val_1.jpg").write_bytes(b"picture")
    target = tmp_path / "data"
    env = settings(target, {"url": f"file://{source}"}, prepare="arrange")
    assert run("stage", env)[0] == 0
    staging = tmp_path / ".data.staging"
    (staging / "val/n01").mkdir(parents=True)
    (staging / "val_1.jpg").rename(staging / "val/n01/val_1.jpg")
    assert run("publish", env)[0] == 0
    assert read(target) == {"val/n01/val_1.jpg": b"picture"}
    assert run("verify", {}, str(target))[0] == 0


def test_an_existing_dataset_is_replaced_only_with_replace(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "data"
    source.mkdir()
    (source / "a").write_bytes(b"one")
    stage_and_publish(settings(target, {"url": f"file://{source}"}))
    (source / "a").write_bytes(b"three")
    code, output = run("stage", settings(target, {"url": f"file://{source}"}))
    assert code == 78
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
    code, output = run("verify", {}, str(tmp_path / "out/other"), str(target))
    assert code == 78
    assert sentence in output


def test_verify_says_of_a_file_whether_it_is_there(tmp_path: Path) -> None:
    weights = tmp_path / "R50.npz"
    assert run("verify", {}, str(weights), "--quick") == (78, f"bireme dataset: {weights} is not there\n")
    weights.write_bytes(b"four")
    assert run("verify", {}, str(weights)) == (0, f"bireme dataset: {weights} is there: 4 bytes\n")


class Flaky(http.server.BaseHTTPRequestHandler):
    """A web server that supports ranges and closes the connection after 300 kB of each response."""

    content = random.Random(3).randbytes(2 * MiB + 5)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.send_header("ETag", '"one"')
        self.end_headers()

    def do_GET(self) -> None:
        start, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.send_response(206)
        self.send_header("Content-Length", str(end + 1 - start))
        self.end_headers()
        self.wfile.write(self.content[start : min(end + 1, start + 300_000)])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def web_server(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def test_an_interrupted_response_is_continued_where_it_ended(tmp_path: Path) -> None:
    target = tmp_path / "data"
    digest = hashlib.sha256(Flaky.content).hexdigest()
    with web_server(Flaky) as url:
        stage_and_publish(settings(target, {"url": f"{url}/coco.zip", "path": "data", "sha256": digest}))
    assert read(target) == {"data/coco.zip": Flaky.content}


def test_a_file_of_a_web_server_is_copied(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web/train.txt").write_bytes(b"words\n")
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with web_server(functools.partial(quiet, directory=str(tmp_path / "web"))) as url:
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
    for name in ("source", "source-2"):
        (tmp_path / name / "b").mkdir(parents=True)
        (tmp_path / name / "a").write_bytes(b"one")
    (tmp_path / "token").write_text("TOKEN")
    make(tmp_path / "source/odd")
    code, output = run("copy", settings(tmp_path / "data", {"url": f"file://{tmp_path}/source"}))
    assert code == 78, output
    assert sentence in output
    assert not (tmp_path / "data").exists()


def test_links_to_files_of_the_source_are_copied_as_files(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "blobs").mkdir(parents=True)
    (source / "blobs/1").write_bytes(b"one")
    (source / "snapshot").mkdir()
    (source / "snapshot/model").symlink_to("../blobs/1")
    # A claim's folder may itself be reached by a link.
    (tmp_path / "link").symlink_to("source")
    stage_and_publish(settings(tmp_path / "data", {"url": f"file://{tmp_path}/link"}))
    assert read(tmp_path / "data") == {"blobs/1": b"one", "snapshot/model": b"one"}


@pytest.mark.parametrize(
    ("sources", "sentence"),
    [
        ([{"url": "file:///dev/zero"}], "/dev/zero is a pipe, a socket or a device"),
        ([{"url": "ftp://host/file"}], "ftp://host/file is neither"),
        ([{"url": "file:///nowhere"}], "/nowhere does not exist"),
        ([{"url": "file:///etc/hostname"}, {"url": "file:///etc/hostname"}], "comes from two sources"),
        ([{"url": "file:///etc/hostname", "path": "../up"}], "is not a path below a folder"),
    ],
)
def test_unusable_sources_are_reported(tmp_path: Path, sources: list[dict[str, str]], sentence: str) -> None:
    code, output = run("stage", settings(tmp_path / "data", *sources))
    assert code == 78
    assert sentence in output


def test_a_bucket_without_objects_or_credentials_is_reported(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    env = settings(tmp_path / "data", {"url": f"s3://{bucket}/nothing"})
    code, output = run("stage", {**s3.env, **env})
    assert (code, output) == (78, f"bireme dataset: s3://{bucket}/nothing has no objects\n")
    bare = {name: value for name, value in s3.env.items() if "KEY" not in name}
    code, output = run("stage", {**bare, **env, "AWS_EC2_METADATA_DISABLED": "true"})
    assert code == 77
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
    asked: list[str | None] = []

    class Agent(Flaky):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            found = {
                "AccessKeyId": "A",
                "SecretAccessKey": "S",
                "Token": "T",
                "Expiration": "2099-01-01T00:00:00Z",
            }
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

    with web_server(Agent) as url:
        env = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/v1/credentials"}
        provider = CredentialsProvider(
            {**env, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token")}
        )
        assert provider.credentials() == provider.credentials()
    assert provider.credentials().key == "A"
    assert asked == ["secret-token"]
