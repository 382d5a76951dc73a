"""`extract` unpacks archives before a dataset is published; sources have tokens and keys of their own."""

from __future__ import annotations

import http.server
import io
import json
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme_runtime.dataset.claim.places import env_of
from tests.runtime.datasets import read, refused, run, settings, stage_and_publish, web_server, write
from tests.runtime.faulty_servers import faulty_server

FILES = {"n01/a.jpg": b"a" * 5000, "n01/b.jpg": b"b", "n02/sub/c.jpg": b""}


def tarred(files: dict[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("./n01")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def folder_of(tmp_path: Path, files: dict[str, bytes]) -> dict[str, object]:
    return {"url": f"file://{write(tmp_path / 'source', files)}", "extract": True}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.tar", tarred(FILES)),
        ("data.tar.gz", tarred(FILES, "w:gz")),
        ("data.TGZ", tarred(FILES, "w:gz")),
        ("data.tar.xz", tarred(FILES, "w:xz")),
        ("data.zip", zipped(FILES)),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_archive_becomes_its_files(tmp_path: Path, name: str, content: bytes) -> None:
    source = folder_of(tmp_path, {f"train/{name}": content, "LICENSE": b"mine"})
    target = tmp_path / "data"
    env = settings(target, source)
    assert "3 files, 5001 bytes" in stage_and_publish(env)
    assert read(target) == {**{f"train/{path}": data for path, data in FILES.items()}, "LICENSE": b"mine"}
    assert "is complete: 4 files" in run("verify", {}, str(target))[1]
    assert "nothing to copy" in stage_and_publish(env)


def of_windows(names: list[str], system: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            member = zipfile.ZipInfo("x")
            member.filename, member.create_system = name, system
            archive.writestr(member, b"" if name.endswith("\\") else b"x")
    return out.getvalue()


def test_a_zip_of_windows_has_its_folders_and_one_of_unix_its_names(tmp_path: Path) -> None:
    content = {
        "w.zip": of_windows(["n\\", "n\\m\\a.jpg", "n/b.jpg"]),
        "u.zip": of_windows(["a\\b"], system=3),
    }
    stage_and_publish(settings(tmp_path / "data", folder_of(tmp_path, content)))
    assert read(tmp_path / "data") == {"n/m/a.jpg": b"x", "n/b.jpg": b"x", "a\\b": b"x"}


def test_an_attempt_after_a_kill_unpacks_again(tmp_path: Path) -> None:
    target = tmp_path / "data"
    env = settings(target, folder_of(tmp_path, {"data.tar": tarred(FILES)}))
    assert run("stage", env)[0] == 0
    # Half of it, as a killed pod leaves it.
    (target.parent / ".data.staging/n01/a.jpg").write_bytes(b"half")
    stage_and_publish(env)
    assert read(target) == FILES


def test_asking_for_extract_later_is_another_dataset(tmp_path: Path) -> None:
    target, source = tmp_path / "data", folder_of(tmp_path, {"data.tar": tarred(FILES)})
    stage_and_publish(settings(target, {"url": str(source["url"])}))
    assert set(read(target)) == {"data.tar"}
    stage_and_publish(settings(target, source, replace=True))
    assert read(target) == FILES


def link() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("passwd")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    return out.getvalue()


def zipped_link() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        member = zipfile.ZipInfo("passwd")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(member, "/etc/passwd")
    return out.getvalue()


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"a.tar": tarred({"../../out": b"x"})}, "is not a path below a folder"),
        ({"a.zip": zipped({"../out": b"x"})}, "is not a path below a folder"),
        ({"a.zip": of_windows(["n\\..\\..\\out"])}, "is not a path below a folder"),
        ({"a.zip": zipped({"MANIFEST.jsonl": b"x"})}, "MANIFEST.jsonl, a name that a dataset reserves"),
        ({"a.tar": link()}, "a.tar contains passwd, which is neither a file nor a folder"),
        ({"a.zip": zipped_link()}, "a.zip contains passwd, which is neither a file nor a folder"),
        ({"a.tar": tarred(FILES), "n01": b"x"}, "needs a folder where a file is: rename one"),
        ({"a.tar": tarred({"x": b"1"}), "x": b"2"}, "x is in a.tar, and there is another file of that name"),
        ({"a.tar": tarred(FILES)[:3000]}, "a.tar cannot be unpacked: ReadError"),
        ({"a.tar.gz": tarred(FILES, "w:gz")[:-20]}, "a.tar.gz cannot be unpacked: "),
        ({"a.zip": zipped(FILES)[:-30]}, "a.zip cannot be unpacked: BadZipFile"),
        ({"a.rec": b"x"}, "has nothing to extract: no name ends with .tar"),
    ],
    ids=range(12),
)
def test_an_archive_that_cannot_be_is_told_and_nothing_is_published(
    tmp_path: Path, files: dict[str, bytes], sentence: str
) -> None:
    assert sentence in refused("stage", settings(tmp_path / "data", folder_of(tmp_path, files)))
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "out").exists()


class Private(http.server.BaseHTTPRequestHandler):
    """Serves a file to those with the token; it redirects to `elsewhere`, where a token is refused."""

    elsewhere = ""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization") == "Bearer hf_secret"
        self.send_response(302 if allowed else 401)
        if allowed:
            self.send_header("Location", self.elsewhere)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def private() -> Iterator[tuple[str, list[str]]]:
    """A URL that needs a token, and the requests of the host to which it redirects."""
    with faulty_server({"model.bin": b"m" * 3000}) as other:
        Private.elsewhere = f"{other.url}/b/model.bin"
        with web_server(Private) as port:
            yield f"http://127.0.0.1:{port}/model.bin", other.authorizations


def test_a_token_goes_to_its_host_and_to_no_other(private: tuple[str, list[str]], tmp_path: Path) -> None:
    url, authorizations = private
    env = settings(tmp_path / "data", {"url": url})
    assert "401" in refused("stage", env)
    stage_and_publish({**env, "BIREME_SOURCE_0_BIREME_TOKEN": "hf_secret"})
    assert read(tmp_path / "data") == {"model.bin": b"m" * 3000}
    assert set(authorizations) == {""}


def test_a_source_has_its_own_server_and_keys(tmp_path: Path) -> None:
    with faulty_server({"data/a": b"1"}) as one, faulty_server({"data/b": b"2"}) as two:
        own = {f"BIREME_SOURCE_1_{name}": value for name, value in two.env.items()}
        stage_and_publish(
            {**one.env, **own, **settings(tmp_path / "data", {"url": "s3://b/data"}, {"url": "s3://b/data"})}
        )
    assert read(tmp_path / "data") == {"a": b"1", "b": b"2"}


def test_credentials_of_a_source_are_not_mixed_with_those_of_all() -> None:
    shared = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S", "AWS_SESSION_TOKEN": "T", "X": "1"}
    own = {"BIREME_SOURCE_1_AWS_ACCESS_KEY_ID": "B", "BIREME_SOURCE_1_AWS_SECRET_ACCESS_KEY": "R"}
    found = env_of({**shared, **own}, 1)
    assert {name: found.get(name) for name in shared} == {
        "AWS_ACCESS_KEY_ID": "B", "AWS_SECRET_ACCESS_KEY": "R", "AWS_SESSION_TOKEN": None, "X": "1",
    }  # fmt: skip
    assert "AWS_ACCESS_KEY_ID" not in env_of({**shared, "BIREME_SOURCE_0_BIREME_S3_ANONYMOUS": "true"}, 0)
    assert json.dumps(dict(env_of(shared, 0))) == json.dumps(shared)
