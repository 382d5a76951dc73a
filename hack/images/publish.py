"""Build the images of the project and push them to a registry.

    python hack/images/publish.py --only "paddle torch" 123456789012.dkr.ecr.us-west-2.amazonaws.com
    python hack/images/publish.py --mirror --dry-run ghcr.io/someone

REGISTRY is a host, and a folder if it has folders; charts use the images with
--set global.imageRegistries.bireme=REGISTRY. Each images/*/Dockerfile is built on its default base. With
--mirror, crane also copies the images of others that any chart names, and
--set global.imageRegistry=REGISTRY uses all of them. For ECR this logs in with the AWS command line and
makes missing repositories; log in to other registries before. The mirror has the chart of NVIDIA's device
plugin too, below REGISTRY/charts.

With --cosign-key each image gets an SBOM and its provenance, and is signed; the password is COSIGN_PASSWORD.
With --digests nothing is built: the digests that REGISTRY has are printed, as values of any chart.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import yaml

from bireme.core.errors import BiremeError, run
from bireme.core.paths import Paths
from bireme.helm import Renderer, RenderRequest, SetFlags
from bireme.plan.workloads import images_of
from bireme.tools import Toolbox

PROJECT = Path(__file__).resolve().parents[2]
_OURS = "bireme"
_WHEELS = "dist/wheels"
# A Dockerfile says so where its base has more than amd64.
_PLATFORMS = re.compile(r"^# platforms: (\S+)$", re.MULTILINE)
# Where the EFA plugin is copied from, for a registry that is in no region; each of EKS's registries has it.
_REGION = "us-west-2"
_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d+)?(/[a-z0-9]+([._-][a-z0-9]+)*)*")
# What the walkthroughs install of others: chart, version, repository, and image.
_PLUGIN = ("nvidia-device-plugin", "0.19.0", "https://nvidia.github.io/k8s-device-plugin")
_PLUGIN_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.19.0"
_ECR = re.compile(
    r"(?P<host>\d{12}\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?)(/(?P<folder>.*))?"
)


@click.command(help=__doc__)
@click.argument("registry")
@click.option("--dry-run", is_flag=True, help="Print the commands instead")
@click.option("--mirror", is_flag=True, help="Also copy the images of others that the charts name")
@click.option("--only", default="", help="Build only these, by their folders in images")
@click.option("--cosign-key", type=click.Path(exists=True), help="Sign the images with this secret key")
@click.option("--digests", "wants_digests", is_flag=True, help="Print what the registry has instead")
def main(
    registry: str, dry_run: bool, mirror: bool, only: str, cosign_key: str | None, wants_digests: bool
) -> None:
    environment, toolbox = dict(os.environ), Toolbox(Paths.discover(start=PROJECT))
    if wants_digests:
        print_digests(registry.rstrip("/"), PROJECT, only.split(), toolbox)
        return
    for tool in ("crane", "helm", "cosign") if not dry_run and (mirror or cosign_key) else ():
        environment["PATH"] = f"{toolbox.path(tool).parent}:{environment['PATH']}"
    failed = []
    for script in steps(registry.rstrip("/"), PROJECT, only.split(), mirror=mirror, key=cosign_key):
        if dry_run:
            click.echo(script)
            continue
        shell = ["bash", "-euxo", "pipefail", "-c", script]
        if subprocess.run(shell, env=environment, cwd=PROJECT, check=False).returncode:
            failed.append(script.splitlines()[0].strip("# "))
    if failed:
        raise BiremeError(f"these failed, see the output above: {', '.join(failed)}; --only repeats them")


def steps(
    registry: str, project: Path, only: Sequence[str] = (), *, mirror: bool = False, key: str | None = None
) -> list[str]:
    """A shell script for each image, which runs in the project's folder. Its first line names the image.

    ``key`` signs images. Raises BiremeError for an invalid ``registry`` and unknown names in ``only``.
    """
    if not registry:
        raise BiremeError("no registry: say where to push, as in make images REGISTRY=ghcr.io/someone")
    if not _REGISTRY.fullmatch(registry):
        raise BiremeError(
            f"{registry} is not a registry: write a host without https://, as in ghcr.io/someone"
        )
    others = images_of_others(project, registry) if mirror else []
    copies = [_copy(registry, image, key) for image in others]
    return [*_builds(registry, project, only, key), *copies, *([_copy_plugin(registry)] if mirror else [])]


def print_digests(registry: str, project: Path, only: Sequence[str], toolbox: Toolbox) -> None:
    """Print global.imageDigests of the images of ``only`` or of all. Raises BiremeError if one is missing."""
    version = (project / "images/VERSION").read_text().strip()
    ours = [f"{_OURS}/{name}:{version}" for name in only or _folders(project)]
    others = [] if only else [each for each in images_of_others(project, registry) if "@" not in each]
    found = {}
    for image in [*ours, *others]:
        where = f"{registry}/{image if image in ours else image.split('/', 1)[1]}"
        command = [str(toolbox.path("crane")), "digest", where]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BiremeError(f"{where}: {done.stderr.strip()}")
        found[image] = done.stdout.strip()
    click.echo(yaml.safe_dump({"global": {"imageDigests": found}}), nl=False)


def images_of_others(project: Path, registry: str) -> list[str]:
    """What `--mirror` copies: images that charts render with their ci values, and that of NVIDIA's plugin."""
    ecr = _ECR.fullmatch(registry)
    region = ecr["region"] if ecr else _REGION
    paths = Paths.discover(start=project)
    requests = []
    for file in sorted(project.glob("charts/*/ci/*-values.yaml")):
        chart = file.parents[1]
        settings = SetFlags(sets=[f"region={region}"] if chart.name == "efa-device-plugin" else [])
        requests.append(RenderRequest(chart, yaml.safe_load(file.read_text()) or {}, settings=settings))
    renderer = Renderer(Toolbox(paths), paths)
    found = images_of(each for request in requests for each in renderer.render(request).manifests)
    return sorted({_PLUGIN_IMAGE, *(image for image in found if f"{_OURS}/" not in image)})


def _folders(project: Path) -> dict[str, Path]:
    return {file.parent.name: file for file in sorted(project.glob("images/*/Dockerfile"))}


def _builds(registry: str, project: Path, only: Sequence[str], key: str | None) -> Iterator[str]:
    # Not the charts' version: a chart that names the same images can be upgraded under a running job.
    version = (project / "images/VERSION").read_text().strip()
    files = _folders(project)
    if unknown := [name for name in only if name not in files]:
        raise BiremeError(f"there is no images/{unknown[0]}; there are {', '.join(files)}")
    for name in only or files:
        text, repository, context = files[name].read_text(), f"{_OURS}/{name}", "images"
        commands = [f"# {name}", *_prepare(registry, repository)]
        if "COPY *.whl" in text:
            wheel = f"{shlex.quote(sys.executable)} -m pip wheel --quiet --no-deps --wheel-dir {_WHEELS} ."
            commands.append(wheel)
            context = _WHEELS
        platforms = _PLATFORMS.search(text)
        build = ["docker", "buildx", "build", "--platform", platforms[1] if platforms else "linux/amd64"]
        build += ["--sbom=true", "--provenance=mode=max"] if key else []
        build += ["--push", "--tag", f"{registry}/{repository}:{version}"]
        commands.append(shlex.join([*build, "--file", f"images/{name}/Dockerfile", context]))
        yield "\n".join([*commands, *_sign(f"{registry}/{repository}:{version}", key)])


def _sign(image: str, key: str | None) -> list[str]:
    """Nothing is sent to a transparency log: who verifies trusts the key."""
    sign = f"cosign sign --yes --tlog-upload=false --key {shlex.quote(key or '')}"
    return [f'{sign} "{image.partition("@")[0]}@$(crane digest {image})"'] if key else []


def _copy_plugin(registry: str) -> str:
    name, version, repository = _PLUGIN
    commands = [f"# {name}", *_prepare(registry, f"charts/{name}")]
    commands.append(f"helm pull {name} --repo {repository} --version {version} --destination dist")
    return "\n".join([*commands, f"helm push dist/{name}-{version}.tgz oci://{registry}/charts"])


def _copy(registry: str, image: str, key: str | None) -> str:
    host, name = image.split("/", 1)
    copy = shlex.join(["crane", "copy", image, f"{registry}/{name}"])
    before = [f"# {image}", *_login(host), *_prepare(registry, re.split("[:@]", name)[0])]
    return "\n".join([*before, copy, *_sign(f"{registry}/{name}", key)])


def _login(registry: str) -> list[str]:
    """ECR's login ends after twelve hours, so each image has its own."""
    if not (ecr := _ECR.fullmatch(registry)):
        return []
    password = f"aws ecr get-login-password --region {ecr['region']}"
    return [f"{password} | docker login --username AWS --password-stdin {ecr['host']}"]


def _prepare(registry: str, repository: str) -> list[str]:
    """Other registries than ECR make a repository when something is pushed to it."""
    if not (ecr := _ECR.fullmatch(registry)):
        return []
    name = f"{ecr['folder']}/{repository}" if ecr["folder"] else repository
    where = f"--region {ecr['region']}"
    there = f"aws ecr describe-repositories {where} --repository-names {name}"
    make = f"aws ecr create-repository {where} --repository-name {name}"
    return [*_login(registry), f"{there} >/dev/null 2>&1 || {make}"]


if __name__ == "__main__":
    run(main)
