"""Sources that rclone reads: copied, continued and checked as all others.

The remotes are a folder, whose checksums would be slow and are not asked, and moto's S3, which lists them.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from bireme.core.paths import Paths
from bireme.tools import Toolbox
from bireme_runtime.dataset.claim.places import open_source
from bireme_runtime.sources.source import Changed
from tests.runtime.datasets import (
    begin,
    content,
    kill_when,
    read,
    refused,
    run,
    settings,
    stage_and_publish,
    upload,
    write,
)
from tests.runtime.s3_servers import KEYS, S3Server, s3_server


@pytest.fixture(scope="session")
def program() -> Path:
    """The pinned rclone, whose build takes some minutes."""
    return Toolbox(Paths.discover(start=Path(__file__))).path("rclone")


@pytest.fixture
def env(program: Path, tmp_path: Path) -> dict[str, str]:
    """The variables of a pod with rclone and the remote `disk`, which is the folder `remote`."""
    config = tmp_path / "rclone.conf"
    for folder in ("remote", "out"):
        (tmp_path / folder).mkdir()
    config.write_text(f"[disk]\ntype = alias\nremote = {tmp_path}/remote\n")
    path = f"{program.parent}:{os.environ['PATH']}"
    return {"PATH": path, "BIREME_SOURCE_0_RCLONE_CONFIG": str(config), "HOME": str(tmp_path)}


def copies(tmp_path: Path, path: str = "", **more: Any) -> dict[str, str]:
    return settings(tmp_path / "out/data", {"url": f"rclone://disk/{path}"}, **more)


@pytest.mark.whole
def test_a_remote_is_copied_and_a_second_install_copies_nothing(env: dict[str, str], tmp_path: Path) -> None:
    files = {**content(30), "large #1?": random.Random(1).randbytes(5 << 20), "empty": b"", "x[1]": b"x"}
    write(tmp_path / "remote", files)
    stage_and_publish({**env, **copies(tmp_path)})
    assert read(tmp_path / "out/data") == files
    assert "nothing to copy" in stage_and_publish({**env, **copies(tmp_path)})
    assert run("verify", {}, str(tmp_path / "out/data"))[0] == 0


@pytest.mark.whole
def test_one_file_and_a_folder_of_a_remote_are_copied(env: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "remote", {"a/b/f.bin": b"one", "a/b/g": b"other", "c": b"third"})
    stage_and_publish({**env, **copies(tmp_path, "a/b/f.bin")})
    assert read(tmp_path / "out/data") == {"f.bin": b"one"}
    stage_and_publish({**env, **copies(tmp_path, "a/b", replace=True)})
    assert read(tmp_path / "out/data") == {"f.bin": b"one", "g": b"other"}


@pytest.mark.whole
def test_after_a_kill_only_the_rest_is_read(env: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "remote", {"large": random.Random(1).randbytes(64 << 20)})
    wanted = {**env, **copies(tmp_path, parallel=1)}
    kill_when(lambda journal: journal.count("part") > 2, tmp_path / "out/data", begin("stage", wanted))
    log = stage_and_publish(wanted)
    assert 0 < int(log.partition("is complete; ")[2].split()[0]) < 63 << 20
    assert read(tmp_path / "out/data") == {"large": (tmp_path / "remote/large").read_bytes()}


@pytest.mark.whole
def test_a_file_that_changes_is_noticed(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", env["PATH"])
    write(tmp_path / "remote", {"f": b"1" * 1000})
    source = open_source("rclone://disk/", {"RCLONE_CONFIG": env["BIREME_SOURCE_0_RCLONE_CONFIG"]})
    (entry,) = source.entries()
    with source.read(entry, 10, 20) as body:
        assert body.read(100) == b"1" * 10
    os.utime(tmp_path / "remote/f", (1, 1))
    with pytest.raises(Changed, match="has changed since it was listed"), source.read(entry, 0, 10):
        pass
    (tmp_path / "remote/f").unlink()
    with pytest.raises(Changed, match="has changed since it was listed"), source.read(entry, 0, 10):
        pass


@pytest.mark.whole
@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("rclone://disk/nothing", "rclone://disk/nothing "),
        ("rclone://other/a", "didn't find section in config file"),
    ],
)
def test_what_a_remote_does_not_have_is_told(
    env: dict[str, str], tmp_path: Path, url: str, sentence: str
) -> None:
    write(tmp_path / "remote", {"f": b"1"})
    assert sentence in refused("stage", {**env, **settings(tmp_path / "out/data", {"url": url})})


@pytest.mark.whole
def test_the_md5_that_a_remote_lists_is_compared(env: dict[str, str], tmp_path: Path) -> None:
    with s3_server(tmp_path / "log") as s3:
        s3.put("bucket")
        files = {**content(5), "large": random.Random(1).randbytes(3 << 20)}
        upload(s3, "bucket", files, "")
        _remote_of(s3, Path(env["BIREME_SOURCE_0_RCLONE_CONFIG"]))
        wanted = {**env, **settings(tmp_path / "out/data", {"url": "rclone://moto/bucket"})}
        log = stage_and_publish(wanted)
        assert read(tmp_path / "out/data") == files
        assert "has no checksum" not in log


def _remote_of(s3: S3Server, config: Path) -> None:
    config.write_text(
        f"[moto]\ntype = s3\nprovider = Other\nendpoint = {s3.url}\nregion = us-east-1\n"
        f"access_key_id = {KEYS['AWS_ACCESS_KEY_ID']}\nsecret_access_key = {KEYS['AWS_SECRET_ACCESS_KEY']}\n"
    )


def test_an_image_without_rclone_is_refused_by_a_sentence(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), **copies(tmp_path, "a")}
    assert "rclone://disk/a needs the program rclone: set an image" in refused("stage", env)
