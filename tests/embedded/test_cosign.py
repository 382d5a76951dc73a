"""Charts signed with cosign's key in a file: verified, and refused after one byte changed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import package
import pytest

from bireme.paths import Paths
from bireme.tools import Toolbox

# cosign is built for these tests alone, which takes minutes.
pytestmark = pytest.mark.whole
Cosign = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cosign(toolbox: Toolbox, tmp_path: Path) -> Cosign:
    """Runs cosign in a folder with the keys cosign.key and cosign.pub."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COSIGN_PASSWORD": "", "HOME": str(tmp_path)}
        command = [str(toolbox.path("cosign")), *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    made = run("generate-key-pair")
    assert made.returncode == 0, made.stderr
    return run


@pytest.fixture
def archive(toolbox: Toolbox, bireme_paths: Paths, tmp_path: Path) -> Path:
    """A packed chart."""
    return package.pack_chart(toolbox, bireme_paths.charts / "efs", tmp_path, 0)


def change_one_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_cosign_verifies_a_chart_and_refuses_it_after_one_byte_changed(
    cosign: Cosign, toolbox: Toolbox, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    package.sign_blobs(toolbox, [archive], tmp_path / "cosign.key")
    signature = f"{archive.name}.sig"
    command = ["verify-blob", "--key", "cosign.pub", "--insecure-ignore-tlog", "--signature", signature]
    verified = cosign(*command, archive.name)
    assert verified.returncode == 0, verified.stderr
    assert "Verified OK" in verified.stderr
    change_one_byte(archive)
    refused = cosign(*command, archive.name)
    assert refused.returncode != 0
    assert "invalid signature" in refused.stderr
