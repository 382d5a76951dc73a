"""Signed charts, as archives and in a registry: verified, and refused after one byte changed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import package
import pytest

from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.support import gpg
from tests.support.registry import serving

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

    for name in ("cosign", "other"):
        made = run("generate-key-pair", "--output-key-prefix", name)
        assert made.returncode == 0, made.stderr
    return run


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "")


@pytest.fixture
def registry(toolbox: Toolbox, tmp_path: Path) -> Iterator[str]:
    with serving(toolbox, tmp_path / "registry") as name:
        yield f"oci://{name}/charts"


@pytest.fixture
def archive(toolbox: Toolbox, bireme_paths: Paths, tmp_path: Path) -> Path:
    """A packed chart with its SBOM."""
    packed = package.pack_chart(toolbox, bireme_paths.charts / "efs", tmp_path, 0)
    package.write_sbom(packed, ["docker.io/library/python:3"], 0)
    return packed


def change_one_byte(file: Path, place: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


VERIFY = ["verify", "--insecure-ignore-tlog", "--allow-http-registry", "--key"]


def test_cosign_verifies_a_chart_of_a_registry_and_refuses_another_key_or_chart(
    cosign: Cosign, toolbox: Toolbox, archive: Path, registry: str, tmp_path: Path
) -> None:
    (pushed,) = package.push(toolbox, [archive], registry, tmp_path / "cosign.key", plain_http=True)
    tag = f"{pushed.partition('@')[0]}:{archive.stem.removeprefix('efs-')}"
    for address in (pushed, tag):
        verified = cosign(*VERIFY, "cosign.pub", address)
        assert verified.returncode == 0, verified.stderr
    statement = cosign("verify-attestation", "--type=cyclonedx", *VERIFY[1:], "cosign.pub", pushed)
    assert statement.returncode == 0, statement.stderr
    payload = json.loads(base64.b64decode(json.loads(statement.stdout)["payload"]))
    assert payload["predicate"]["metadata"]["component"]["name"] == "efs"
    refused = cosign(*VERIFY, "other.pub", pushed)
    assert refused.returncode != 0
    assert "no matching signatures" in refused.stderr
    # A gzip archive has the system that made it in its tenth byte: the chart is as good as before.
    change_one_byte(archive, 9)
    (instead,) = package.push(toolbox, [archive], registry, plain_http=True)
    assert instead != pushed
    refused = cosign(*VERIFY, "cosign.pub", tag)
    assert refused.returncode != 0
    assert "no signatures found" in refused.stderr
    assert cosign(*VERIFY, "cosign.pub", pushed).returncode == 0, "the signed one is still there"


def test_helm_pulls_what_its_provenance_and_its_digest_say_or_nothing(
    toolbox: Toolbox, archive: Path, registry: str, tmp_path: Path
) -> None:
    key = gpg.make_key(tmp_path)
    package.sign([archive], key / "secret")
    package.push(toolbox, [archive], registry, plain_http=True)

    def pull(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(toolbox.path("helm")), "pull", f"{registry}/efs", "--plain-http", *words]
        own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True)

    verify = ["--verify", "--keyring", str(key / "public")]
    pulled = pull(*verify)
    assert pulled.returncode == 0, pulled.stderr
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (blob,) = (tmp_path / "registry").rglob(f"{digest}/data")
    change_one_byte(blob)
    refused = pull("--destination", "again")
    assert refused.returncode != 0
    assert "digest" in refused.stderr


def test_cosign_verifies_a_chart_and_refuses_it_after_one_byte_changed(
    cosign: Cosign, toolbox: Toolbox, archive: Path, tmp_path: Path
) -> None:
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
