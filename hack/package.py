"""Pack what a release publishes: `package.py FOLDER`, with the options below.

FOLDER gets each application chart as an archive that needs nothing beside it, index.yaml for a Helm
repository at URL, the values files of instance types and workloads, a picture of the plan of each chart that
has pods, wheels and sdists of bireme and bireme-runtime, a plugin of kubectl for krew (bireme.yaml), and
SHA256SUMS. With URL the charts tell Artifact Hub their links and pictures. With OWNER, such as "Ann
<ann@example.com>", artifacthub-repo.yml tells it whose they are. Equal sources give equal bytes: the only
time in them is SOURCE_DATE_EPOCH, or that of the last commit. With FILE, a secret key of gpg without a
passphrase, each chart also gets its provenance, which `helm verify` reads. With a secret key of cosign, whose
password is COSIGN_PASSWORD, each chart and SHA256SUMS get a signature (CHART.sig), which `cosign verify-blob`
reads. CHART.cdx.json is the SBOM of a chart (CycloneDX).

With --registry oci://HOST/PATH each chart is also pushed there, with its provenance. With the key of cosign
it is signed there, for `cosign verify`, and its SBOM attested, for `cosign verify-attestation`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parseaddr
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from bireme import Cluster, __version__
from bireme.core.errors import BiremeError, run
from bireme.core.paths import Paths
from bireme.helm import Renderer, RenderRequest, values
from bireme.plan import workloads
from bireme.plan.picture import svg
from bireme.tools import Toolbox

_DEFAULT_URL = "."
# https://artifacthub.io/docs/topics/annotations/helm/
CHANGES_ANNOTATION = "artifacthub.io/changes"
IMAGES_ANNOTATION = "artifacthub.io/images"
LINKS_ANNOTATION = "artifacthub.io/links"
SCREENSHOTS_ANNOTATION = "artifacthub.io/screenshots"
RUNTIME_IN_CHART = "charts/bireme-runtime/files/runtime/"
_OF_JOBS = ("Job charts", "The dispatcher", "Dispatcher")
_ELSEWHERE = ("hack/", "images/", "values/", "`bireme")
_SHOWN_CHANGES = 20
_A_USERS = {"sidecars", "initContainers"}


def application_charts(paths: Paths) -> list[Path]:
    """The charts that can be installed, without the libraries."""
    folders = [file.parent for file in sorted(paths.charts.glob("*/Chart.yaml"))]
    return [folder for folder in folders if values.read_file(folder / "Chart.yaml")["type"] == "application"]


def epoch(root: Path) -> int:
    """The time that everything in a package has."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    command = ["git", "log", "-1", "--format=%ct"]
    return int(given or subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout)


def pack_chart(
    toolbox: Toolbox,
    chart: Path,
    folder: Path,
    time: int,
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """``chart`` as an archive in ``folder``: what `helm package` makes, in one order and with one time.

    Its Chart.yaml gets ``annotations`` and the list of changes.
    """
    with tempfile.TemporaryDirectory() as own:
        command = [str(toolbox.path("helm")), "package", str(chart), "--destination", own]
        environment = os.environ | {f"HELM_{kind}_HOME": own for kind in ("CACHE", "CONFIG", "DATA")}
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        (made,) = Path(own).glob("*.tgz")
        archive = folder / made.name
        files = _needed(contents(made))
    about = f"{chart.name}/Chart.yaml"
    changes = changes_of(chart.parent.parent / "CHANGELOG.md", chart.name)
    files[about] = _annotated(files[about], {CHANGES_ANNOTATION: _as_yaml(changes), **annotations})
    archive.write_bytes(_tar_gz({name: files[name] for name in sorted(files, key=_order)}, time))
    return archive


def _needed(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What a packed chart has of ``files``: of the runtime, only what a container of its charts mounts."""
    kept = {}
    for name, content in files.items():
        chart, carried, file = name.rpartition(RUNTIME_IN_CHART)
        folder = file.rpartition("/")[0].removeprefix("bireme_runtime/")
        if carried and folder not in {"bireme_runtime", *_mounted(files, chart)}:
            continue
        if name.endswith("/values.schema.json"):
            kept[name] = json.dumps(json.loads(content), separators=(",", ":")).encode()
        elif not re.search("/charts/.*README.md$", name):
            kept[name] = content
    return kept


def _mounted(files: Mapping[str, bytes], chart: str) -> Iterator[str]:
    """The folders of the runtime that the annotations of a chart name (charts/bireme-runtime)."""
    for name in (f"{chart}Chart.yaml", f"{chart}charts/training/Chart.yaml"):
        about = yaml.load(files.get(name, b"{}"), Loader=yaml.CSafeLoader)
        for folders in yaml.safe_load(about.get("annotations", {}).get("bireme/runtime", "{}")).values():
            yield from folders


def changes_of(changelog: Path, chart: str) -> list[dict[str, str]]:
    """What the newest release in the changelog says about a chart, as Artifact Hub reads it.

    An entry that begins with names of charts is about those, one of _OF_JOBS about job charts, and one of
    _ELSEWHERE about what no archive has.
    """
    charts = {file.parent.name for file in changelog.parent.glob("charts/*/Chart.yaml")}
    is_job = (changelog.parent / "charts" / chart / "charts/training").exists()
    for section in changelog.read_text(encoding="utf-8").split("\n## ")[1:]:
        found = []
        for kind, text in re.findall(r"\n### (\w+) \w+ charts\n(.*?)(?=\n### |\Z)", section, re.DOTALL):
            for entry in text.split("\n- ")[1:]:
                named = charts.intersection(re.findall("[a-z-]+", entry[: entry.find(": ")]))
                of_job = entry.startswith(_OF_JOBS)
                other = entry.startswith(_ELSEWHERE) or (bool(named) if entry[0] == "`" else of_job > is_job)
                if chart in named or not other:
                    found.append({"kind": kind.lower(), "description": " ".join(entry.split())})
        if more := found[_SHOWN_CHANGES:]:
            rest = {"kind": "changed", "description": f"{len(more)} more, which CHANGELOG.md lists"}
            return [*found[:_SHOWN_CHANGES], rest]
        if found:
            return found
    return []


def images_of(renderer: Renderer, chart: Path) -> list[dict[str, str]]:
    """The images of a chart as Artifact Hub reads them, by name and address.

    They are those of its ci/*-values.yaml, without a user's registries and containers.
    """
    found: set[str] = set()
    for file in sorted((chart / "ci").glob("*-values.yaml")):
        given = values.load([file])
        for key in _A_USERS & given.get("pod", {}).keys():
            del given["pod"][key]
        if "global" not in given:
            found |= workloads.images_of(renderer.render(RenderRequest(chart, given)).manifests)
    return [
        {"name": image.partition("@")[0].rpartition("/")[2].partition(":")[0], "image": image}
        for image in sorted(found)
    ]


def write_sbom(archive: Path, images: Iterable[str], time: int) -> Path:
    """Write the SBOM of a packed chart beside it: the charts in it, and the images that it names.

    Its form is CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/). Returns its file.
    """
    abouts = [
        yaml.load(content, Loader=yaml.CSafeLoader)
        for name, content in contents(archive).items()
        if name.endswith("/Chart.yaml")
    ]
    of_charts = (("application", f"pkg:helm/{each['name']}@{each['version']}", each) for each in abouts)
    # A library is in several charts of an archive, and named once.
    found = {
        purl: {"type": kind, "name": each["name"], "version": each["version"], "bom-ref": purl, "purl": purl}
        for kind, purl, each in (*of_charts, *map(_of_image, sorted(images)))
    }
    own, *parts = found.values()
    digest = _sha256(archive)
    licence = [{"license": {"id": "Apache-2.0"}}]
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": _timestamp(time),
            "component": own | {"hashes": [{"alg": "SHA-256", "content": digest}], "licenses": licence},
        },
        "components": parts,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [each["bom-ref"] for each in parts]}],
    }
    file = _sbom(archive)
    file.write_text(json.dumps(bom, indent=1) + "\n")
    return file


def _of_image(image: str) -> tuple[str, str, dict[str, str]]:
    address, _, digest = image.partition("@")
    repository, _, tag = address.rpartition(":")
    version = f"@{digest.replace(':', '%3A')}" if digest else ""
    purl = f"pkg:oci/{repository.rpartition('/')[2]}{version}?repository_url={repository}&tag={tag}"
    return "container", purl, {"name": repository, "version": digest or tag}


def _sbom(archive: Path) -> Path:
    return archive.with_suffix(".cdx.json")


def draw_plans(paths: Paths, folder: Path) -> set[str]:
    """Draw what the first ci/*-values.yaml of each chart plan, as ``folder``/CHART.svg.

    Returns the names of the charts with a picture: those that plan pods.
    """
    folder.mkdir()
    cluster, drawn = Cluster(), set()
    for chart in application_charts(paths):
        plan = cluster.plan(str(chart), files=[str(min((chart / "ci").glob("*-values.yaml")))])
        if plan.totals.pods:
            (folder / f"{chart.name}.svg").write_text(svg(plan), encoding="utf-8")
            drawn.add(chart.name)
    return drawn


def addresses(chart: str, url: str, has_picture: bool) -> dict[str, str]:
    """The annotations with which a chart at ``url`` tells Artifact Hub what else is there."""
    url = url.rstrip("/")
    found = {LINKS_ANNOTATION: _as_yaml([{"name": "Checksums", "url": f"{url}/SHA256SUMS"}])}
    if has_picture:
        picture = {"title": f"What {chart} runs where", "url": f"{url}/plans/{chart}.svg"}
        found[SCREENSHOTS_ANNOTATION] = _as_yaml([picture])
    return found


def repository_of(owner: str) -> str:
    """artifacthub-repo.yml for an owner such as `Ann <ann@example.com>`. Raises BiremeError."""
    name, address = parseaddr(owner)
    if not name or "@" not in address:
        raise BiremeError(f"{owner!r} names no owner: write name and address, as in Ann <ann@example.com>")
    return _as_yaml({"owners": [{"name": name, "email": address}]})


def _annotated(description: bytes, annotations: Mapping[str, str]) -> bytes:
    about: dict[str, Any] = yaml.safe_load(description)
    about["annotations"] = about.get("annotations", {}) | annotations
    return yaml.safe_dump(about, allow_unicode=True).encode()


def _as_yaml(content: object) -> str:
    return yaml.safe_dump(content, allow_unicode=True, width=1000)


def contents(archive: Path) -> dict[str, bytes]:
    """The files of a packed chart by their names, which begin with the chart's."""
    with tarfile.open(archive) as packed:
        files = ((each.name, packed.extractfile(each)) for each in packed)
        return {name: file.read() for name, file in files if file}


def _order(name: str) -> tuple[bool, str, str]:
    """Helm reads the name of a chart from the start of its archive.

    Files with the same words follow each other, because gzip sees only 32 KiB at a time.
    """
    is_about = name.count("/") == 1 and name.endswith("/Chart.yaml")
    words = name.rpartition("charts/")[2].replace("README.md", "values.a").replace(".schema.json", ".z")
    return not is_about, words, name


def index(archives: list[Path], url: str, time: int) -> str:
    """The index of a Helm repository that has ``archives`` at ``url``."""
    created = _timestamp(time)
    entries: dict[str, list[Any]] = {}
    for archive in archives:
        about = yaml.load(chart_yaml(archive), Loader=yaml.CSafeLoader)
        address = archive.name if url == _DEFAULT_URL else f"{url.rstrip('/')}/{archive.name}"
        entries[about["name"]] = [about | {"created": created, "digest": _sha256(archive), "urls": [address]}]
    content = {"apiVersion": "v1", "entries": entries, "generated": created}
    return yaml.dump(content, Dumper=yaml.CSafeDumper)


def _timestamp(time: int) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def chart_yaml(archive: Path) -> str:
    """Chart.yaml of a packed chart."""
    return next(iter(contents(archive).values())).decode()


def sign(archives: list[Path], key: Path) -> None:
    """Write the provenance of each archive beside it, signed with the secret key in the file ``key``."""
    # The agent may still be removing its sockets when the folder goes.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        gpg = ["gpg", "--batch", "--yes", "--homedir", home]
        subprocess.run([*gpg, "--import", str(key)], capture_output=True, check=True)
        for archive in archives:
            sums = yaml.safe_dump({"files": {archive.name: f"sha256:{_sha256(archive)}"}})
            command = [*gpg, "--digest-algo", "SHA512", "--clearsign", "--output", f"{archive}.prov"]
            message = f"{chart_yaml(archive).strip()}\n\n...\n{sums}"
            subprocess.run(command, input=message, text=True, capture_output=True, check=True)
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


def sign_blobs(toolbox: Toolbox, files: list[Path], key: Path) -> None:
    """Write cosign's signature of each file beside it (FILE.sig), with the secret key in the file ``key``.

    Nothing is sent to a transparency log: who verifies trusts the key.
    """
    for file in files:
        _cosign(toolbox, key, "sign-blob", "--output-signature", f"{file}.sig", str(file))


def _cosign(toolbox: Toolbox, key: Path, verb: str, *arguments: str) -> None:
    command = [str(toolbox.path("cosign")), verb, "--yes", "--tlog-upload=false", "--key", str(key)]
    subprocess.run([*command, *arguments], capture_output=True, check=True)


def push(
    toolbox: Toolbox,
    archives: list[Path],
    registry: str,
    cosign_key: Path | None = None,
    plain_http: bool = False,
) -> list[str]:
    """Push charts to ``registry`` (oci://HOST/PATH), and sign them and their SBOMs there with a key.

    Returns the address of each by its digest, as cosign takes it.
    """
    helm = [str(toolbox.path("helm")), "push", *(["--plain-http"] if plain_http else [])]
    pushed = []
    for archive in archives:
        done = subprocess.run([*helm, str(archive), registry], capture_output=True, text=True, check=True)
        digest = re.search(r"sha256:[0-9a-f]{64}", done.stdout + done.stderr)
        assert digest, f"helm push prints no digest: {done.stdout}{done.stderr}"
        name = yaml.safe_load(chart_yaml(archive))["name"]
        pushed.append(f"{registry.removeprefix('oci://').rstrip('/')}/{name}@{digest[0]}")
    if cosign_key:
        http = ["--allow-http-registry"] if plain_http else []
        for archive, address in zip(archives, pushed, strict=True):
            _cosign(toolbox, cosign_key, "sign", *http, address)
            statement = ["--type", "cyclonedx", "--predicate", str(_sbom(archive))]
            _cosign(toolbox, cosign_key, "attest", *http, *statement, address)
    return pushed


_PLUGIN = """#!/bin/sh
# The command of the wheels beside this file, which the first call installs.
set -e
home="${XDG_CACHE_HOME:-$HOME/.cache}/bireme/kubectl-VERSION"
if [ ! -e "$home/ready" ]; then
  python3 -m venv --clear "$home"
  "$home/bin/pip" install --quiet "$(dirname "$(readlink -f "$0")")"/*.whl >&2
  touch "$home/ready"
fi
exec "$home/bin/bireme" "$@"
"""


def pack_plugin(folder: Path, url: str, time: int) -> None:
    """Write `kubectl bireme` for krew: an archive with the wheels of ``folder``, and its manifest.

    Source of the format: krew.sigs.k8s.io/docs/developer-guide/plugin-manifest.
    """
    script = _PLUGIN.replace("VERSION", __version__)
    files = {"kubectl-bireme": script.encode()} | {
        each.name: each.read_bytes() for each in folder.glob("*.whl")
    }
    archive = folder / "kubectl-bireme.tar.gz"
    archive.write_bytes(_tar_gz(dict(sorted(files.items())), time, mode=0o755))
    systems = [{"key": "os", "operator": "In", "values": ["darwin", "linux"]}]
    platform = {
        "selector": {"matchExpressions": systems},
        "uri": f"{url.rstrip('/')}/{archive.name}",
        "sha256": _sha256(archive),
        "bin": "kubectl-bireme",
    }
    spec = {
        "version": f"v{__version__}",
        "shortDescription": "Plan, install and check distributed training jobs",
        "caveats": "It needs python3 3.11 or newer. The first call installs its packages from PyPI.",
        "platforms": [platform],
    }
    about = {"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin"}
    (folder / "bireme.yaml").write_text(_as_yaml({**about, "metadata": {"name": "bireme"}, "spec": spec}))


def _tar_gz(files: Mapping[str, bytes], time: int, mode: int = 0o644) -> bytes:
    """The files as an archive, in their order and with one time."""
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), time, mode
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(text.getvalue(), mtime=0)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def build_python(source: Path, folder: Path, time: int) -> None:
    """The wheel and the sdist of the project in ``source``."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(time)}
    subprocess.run(command, cwd=source, env=environment, capture_output=True, check=True)


def package(
    paths: Paths,
    folder: Path,
    url: str = _DEFAULT_URL,
    key: Path | None = None,
    cosign_key: Path | None = None,
    owner: str | None = None,
) -> list[Path]:
    """Everything, in ``folder``, which is made again; returns the charts' archives."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder, time, toolbox = folder.resolve(), epoch(paths.root), Toolbox(paths)
    renderer = Renderer(toolbox, paths)
    drawn = draw_plans(paths, folder / "plans")
    archives = []
    for chart in application_charts(paths):
        images = images_of(renderer, chart)
        told = {IMAGES_ANNOTATION: _as_yaml(images)}
        if url != _DEFAULT_URL:
            told |= addresses(chart.name, url, chart.name in drawn)
        archives.append(pack_chart(toolbox, chart, folder, time, told))
        write_sbom(archives[-1], (each["image"] for each in images), time)
    if key:
        sign(archives, key)
    (folder / "index.yaml").write_text(index(archives, url, time))
    if owner:
        (folder / "artifacthub-repo.yml").write_text(repository_of(owner))
    for kind in ("instances", "workloads"):
        shutil.copytree(paths.values / kind, folder / "values" / kind)
    for source in (paths.root, paths.root / "runtime"):
        build_python(source, folder, time)
    pack_plugin(folder, url, time)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    sums = "".join(f"{_sha256(file)}  {file.relative_to(folder)}\n" for file in files)
    (folder / "SHA256SUMS").write_text(sums)
    if cosign_key:
        sign_blobs(toolbox, [*archives, folder / "SHA256SUMS"], cosign_key)
    return archives


def main() -> None:
    """Pack, and push where the arguments say so."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--url", default=_DEFAULT_URL)
    options.add_argument("--owner")
    options.add_argument("--key", type=Path)
    options.add_argument("--cosign-key", type=Path)
    options.add_argument("--registry")
    options.add_argument("--plain-http", action="store_true")
    given = options.parse_args()
    paths = Paths.discover()
    archives = package(paths, given.folder, given.url, given.key, given.cosign_key, given.owner)
    if given.registry:
        for address in push(Toolbox(paths), archives, given.registry, given.cosign_key, given.plain_http):
            print(address)


if __name__ == "__main__":
    run(main)
