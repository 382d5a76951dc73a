"""What `make package` makes can be used without a clone."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import package
import pytest
import yaml
from click.testing import CliRunner

from bireme.cli import cli
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.helm import Charts, Renderer, RenderRequest, load
from bireme.tools import Toolbox
from tests.support import gpg
from tests.support.tiers import core

ROOT = Path(__file__).parents[2]
CHARTS = sorted(file.parent.name for file in ROOT.glob("charts/*/README.md"))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpg.make_key(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def dist(paths: Paths, key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package") / "dist"
    package.package(paths, folder, key=key / "secret")
    return folder


@pytest.fixture(scope="module")
def served(dist: Path) -> Iterator[str]:
    """The address of a web server for what was packed."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(dist))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("chart", core("dataset", "torch-elastic", of=CHARTS))
def test_a_packed_chart_renders_what_the_chart_does(
    dist: Path, paths: Paths, toolbox: Toolbox, own_paths: Paths, chart: str
) -> None:
    renderer = Renderer(toolbox, own_paths)
    (archive,) = dist.glob(f"{chart}-0*.tgz")
    values = load([min((paths.charts / chart / "ci").glob("*-values.yaml"))])
    unpacked = Charts(own_paths, toolbox).find(str(archive))
    assert [file for file in unpacked.rglob("*") if file.is_symlink()] == []
    results = [
        [each.thaw() for each in renderer.render(RenderRequest(folder, values)).manifests]
        for folder in (paths.charts / chart, unpacked)
    ]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("chart", "folders"),
    [
        ("efa-device-plugin", set()),
        ("dataset", {"process", "sources", "sources/web", "dataset", "dataset/claim"}),
        ("paddle", {"process", "etcd", "dispatcher", "dispatcher/service", "sources", "dataset", "paddle"}),
    ],
)
def test_a_packed_chart_has_of_the_runtime_what_its_containers_mount(
    dist: Path, chart: str, folders: set[str]
) -> None:
    (archive,) = dist.glob(f"{chart}-0*.tgz")
    names = (name.rpartition("/") for name in package.contents(archive) if "/charts/etcd/" not in name)
    carried = {folder.partition("/bireme_runtime/")[2] for folder, _, _ in names}
    assert carried - {""} == folders


@pytest.mark.parametrize(("chart", "kilobytes"), [("efa-device-plugin", 25), ("torch-elastic", 296)])
def test_a_packed_chart_is_small(dist: Path, chart: str, kilobytes: int) -> None:
    (archive,) = dist.glob(f"{chart}-0*.tgz")
    assert archive.stat().st_size < kilobytes * 1000


@pytest.mark.whole
def test_equal_sources_give_equal_bytes(dist: Path, paths: Paths, tmp_path: Path) -> None:
    package.package(paths, tmp_path / "again")
    sums = [set((folder / "SHA256SUMS").read_text().splitlines()) for folder in (tmp_path / "again", dist)]
    assert sums[0] == {line for line in sums[1] if not line.endswith(".prov")}
    assert len(sums[0]) > 60


def test_the_sums_are_those_of_the_files(dist: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=dist, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_helm_verifies_a_chart_and_refuses_it_after_one_byte_changed(
    dist: Path, key: Path, toolbox: Toolbox, tmp_path: Path
) -> None:
    (found,) = dist.glob("efs-[0-9]*.tgz")
    for name in (found.name, f"{found.name}.prov"):
        shutil.copy(dist / name, tmp_path)
    archive = tmp_path / found.name
    command = [str(toolbox.path("helm")), "verify", str(archive), "--keyring", str(key / "public")]
    verified = subprocess.run(command, capture_output=True, text=True)
    assert verified.returncode == 0, verified.stderr
    assert "charts@example.com" in verified.stdout
    content = bytearray(archive.read_bytes())
    content[-1] ^= 1
    archive.write_bytes(content)
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "sha256 sum does not match" in refused.stderr


@pytest.mark.parametrize(
    ("chart", "names"),
    [
        ("autoscaler", {"bireme"}),
        ("gpu-metrics", {"python", "dcgm-exporter"}),
        ("torch-elastic", {"python", "pytorch", "tensorflow", "etcd", "git"}),
    ],
)
def test_artifact_hub_reads_licence_changes_and_images(dist: Path, chart: str, names: set[str]) -> None:
    (archive,) = dist.glob(f"{chart}-0*.tgz")
    annotations = yaml.safe_load(package.chart_yaml(archive))["annotations"]
    assert annotations["artifacthub.io/license"] == "Apache-2.0"
    assert yaml.safe_load(annotations["artifacthub.io/changes"])
    images = yaml.safe_load(annotations["artifacthub.io/images"])
    assert all(set(each) == {"name", "image"} for each in images)
    assert {each["name"] for each in images} == names


def test_the_sbom_of_a_chart_names_the_charts_in_it_and_its_images(dist: Path) -> None:
    (archive,) = dist.glob("torch-elastic-*.tgz")
    bom = json.loads(archive.with_suffix(".cdx.json").read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    own, parts = bom["metadata"]["component"], bom["components"]
    assert own["purl"] == f"pkg:helm/{archive.stem.replace('-elastic-', '-elastic@')}"
    assert own["hashes"][0]["content"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    names = {each["name"] for each in parts}
    assert {"etcd", "training", "common", "docker.io/pytorch/pytorch"} <= names
    assert bom["dependencies"] == [{"ref": own["bom-ref"], "dependsOn": [each["bom-ref"] for each in parts]}]
    assert len({each["bom-ref"] for each in parts}) == len(parts)


def test_artifact_hub_finds_the_picture_of_a_plan_beside_the_charts(dist: Path) -> None:
    drawn = {file.stem for file in dist.glob("plans/*.svg")}
    assert {"torch-elastic", "mpi-training", "paddle", "etcd"} <= drawn
    assert "fsx" not in drawn, "it has no pods"
    told = package.addresses("paddle", "https://charts.example.com/", has_picture=True)
    (picture,) = yaml.safe_load(told["artifacthub.io/screenshots"])
    (link,) = yaml.safe_load(told["artifacthub.io/links"])
    for address in (picture["url"], link["url"]):
        assert (dist / address.removeprefix("https://charts.example.com/")).is_file()
    assert "artifacthub.io/screenshots" not in package.addresses("fsx", "https://a.example", False)


def test_artifact_hub_is_told_the_owner() -> None:
    told = yaml.safe_load(package.repository_of("Ann <ann@example.com>"))
    assert told == {"owners": [{"name": "Ann", "email": "ann@example.com"}]}
    with pytest.raises(BiremeError, match=r"'ann' names no owner: write name and address"):
        package.repository_of("ann")


def test_helm_installs_from_the_index(served: str, toolbox: Toolbox, tmp_path: Path) -> None:
    command = [str(toolbox.path("helm")), "template", "run", "torch-elastic", "--repo", served]
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    arguments = ["--set", "instance.type=p4d.24xlarge", "-f", f"{served}/values/workloads/imagenet-efa.yaml"]
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    jobs = [each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "Job"]
    assert [each["metadata"]["name"] for each in jobs] == ["run-r1"]


@pytest.fixture(scope="module")
def site(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the wheel, far from any clone."""
    folder = tmp_path_factory.mktemp("site-packages")
    (wheel,) = dist.glob("bireme-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if "__pycache__" in name] == []
        archive.extractall(folder)
    return folder


def installed(site: Path, paths: Paths, *words: str) -> str:
    """What the command of the wheel prints in an empty folder."""
    home = site.parent / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(site),
        "BIREME_CACHE": str(paths.cache),
    }
    command = [sys.executable, "-c", "from bireme.cli import main; main()", *words]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_plans_a_workload_by_its_name(site: Path, paths: Paths) -> None:
    assert installed(site, paths, "list", "charts").split() == CHARTS
    words = ["plan", "torch-elastic", "-f", "p4d.24xlarge", "-f", "imagenet-efa", "--set", "workers=2"]
    plan = json.loads(installed(site, paths, *words, "-o", "json"))
    assert plan["totals"]["accelerators"] == 16
    assert plan["release"] == "torch-elastic"


@pytest.mark.whole
def test_krew_installs_the_plugin_of_kubectl_whose_first_call_installs_the_wheels(
    dist: Path, paths: Paths, toolbox: Toolbox, tmp_path: Path
) -> None:
    # krew clones its index from GitHub where it has none. An empty one does for a manifest of one's own.
    index = tmp_path / "krew/index/default"
    subprocess.run(["git", "init", "--quiet", str(index)], check=True)
    environment = {
        "PATH": os.pathsep.join([str(tmp_path / "krew/bin"), os.environ["PATH"]]),
        "KREW_ROOT": str(tmp_path / "krew"),
        "HOME": str(tmp_path / "home"),
        "BIREME_CACHE": str(paths.cache),
        # What the wheels need is here already, and no index is asked.
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": os.pathsep.join(each for each in sys.path if each.endswith("site-packages")),
    }

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    files = f"--manifest={dist / 'bireme.yaml'}", f"--archive={dist / 'kubectl-bireme.tar.gz'}"
    installed = run(toolbox.path("krew"), "install", *files)
    assert "Installed plugin: bireme" in installed.stderr, installed.stderr
    for _ in range(2):
        done = run(toolbox.path("kubectl"), "bireme", "list", "charts")
        assert done.stdout.split() == CHARTS, done.stderr
    assert list((tmp_path / "home/.cache/bireme").glob("kubectl-*/bin/bireme"))


def test_the_wheel_has_the_libraries_and_the_runtime_in_each_chart(site: Path) -> None:
    inside = site / "bireme/project/charts/torch-elastic/charts"
    assert (inside / "bireme-runtime/files/runtime/bireme_runtime/elastic/agent/supervisor.py").is_file()
    assert (inside / "training/files/instances/p5.48xlarge.yaml").is_file()


def test_an_archive_that_is_no_chart_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.tgz").write_bytes(b"not an archive")
    done = CliRunner().invoke(cli, ["plan", str(tmp_path / "bad.tgz")])
    assert "bad.tgz is not a packaged chart" in str(done.exception)
