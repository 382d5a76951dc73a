"""Build every image of the project and push it to a registry.

    python hack/images/publish.py 123456789012.dkr.ecr.us-west-2.amazonaws.com
    python hack/images/publish.py --mirror --dry-run ghcr.io/someone

REGISTRY is a host, and a folder if it has folders; charts use the images with
--set global.imageRegistries.bireme=REGISTRY. Each images/*/Dockerfile is built on its default base. With
--mirror, crane also copies the images of others that any chart names, and
--set global.imageRegistry=REGISTRY uses all of them. For ECR this logs in with the AWS command line and
makes missing repositories; log in to other registries before.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import yaml

from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.helm import Renderer, RenderRequest, SetFlags
from bireme.plan.workloads import images_of
from bireme.tools import Toolbox

PROJECT = Path(__file__).resolve().parents[2]
_OURS = "bireme"
_WHEELS = "dist/wheels"
# Where the EFA plugin is copied from, for a registry that is in no region; each of EKS's registries has it.
_REGION = "us-west-2"
_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d+)?(/[a-z0-9]+([._-][a-z0-9]+)*)*")
_ECR = re.compile(
    r"(?P<host>\d{12}\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?)(/(?P<folder>.*))?"
)


@click.command(help=__doc__)
@click.argument("registry")
@click.option("--dry-run", is_flag=True, help="Print the commands instead")
@click.option("--mirror", is_flag=True, help="Also copy the images of others that the charts name")
def main(registry: str, dry_run: bool, mirror: bool) -> None:
    environment = dict(os.environ)
    if mirror and not dry_run:
        crane = Toolbox(Paths.discover(start=PROJECT)).path("crane")
        environment["PATH"] = f"{crane.parent}:{environment['PATH']}"
    for step in steps(registry.rstrip("/"), PROJECT, mirror=mirror):
        click.echo(step if dry_run else f"+ {step}", err=not dry_run)
        shell = ["bash", "-euo", "pipefail", "-c", step]
        if not dry_run and subprocess.run(shell, env=environment, cwd=PROJECT, check=False).returncode:
            raise BiremeError(f"this command failed, see its output above: {step}")


def steps(registry: str, project: Path, *, mirror: bool = False) -> list[str]:
    """The shell commands in the folder of the project, in order.

    Raises BiremeError when ``registry`` cannot be one.
    """
    if not registry:
        raise BiremeError("no registry: say where to push, as in make images REGISTRY=ghcr.io/someone")
    if not _REGISTRY.fullmatch(registry):
        raise BiremeError(
            f"{registry} is not a registry: write a host without https://, as in ghcr.io/someone"
        )
    ecr = _ECR.fullmatch(registry)
    commands = [_login(ecr["host"], ecr["region"])] if ecr else []
    commands += _build(registry, project)
    if mirror:
        commands += _copy(registry, images_of_others(project, ecr["region"] if ecr else _REGION))
    return commands


def images_of_others(project: Path, region: str) -> list[str]:
    """The images that any chart renders with one of its ci values files, except those of images/."""
    paths = Paths.discover(start=project)
    requests = []
    for file in sorted(project.glob("charts/*/ci/*-values.yaml")):
        chart = file.parents[1]
        settings = SetFlags(sets=[f"region={region}"] if chart.name == "efa-device-plugin" else [])
        requests.append(RenderRequest(chart, yaml.safe_load(file.read_text()) or {}, settings=settings))
    renderer = Renderer(Toolbox(paths), paths)
    found = images_of(each for request in requests for each in renderer.render(request).manifests)
    return sorted(image for image in found if f"{_OURS}/" not in image)


def _build(registry: str, project: Path) -> list[str]:
    # Not the charts' version: a chart that names the same images can be upgraded under a running job.
    version = (project / "images/VERSION").read_text().strip()
    commands = []
    for file in sorted(project.glob("images/*/Dockerfile")):
        dockerfile, repository = str(file.relative_to(project)), f"{_OURS}/{file.parent.name}"
        tag = f"{registry}/{repository}:{version}"
        build = ["docker", "build", "--platform", "linux/amd64", "--tag", tag]
        context = "images"
        if "COPY *.whl" in file.read_text():
            wheel = f"{shlex.quote(sys.executable)} -m pip wheel --quiet --no-deps --wheel-dir {_WHEELS} ."
            commands.append(wheel)
            context = _WHEELS
        build += ["--file", dockerfile, context]
        commands += [shlex.join(build), *_make_repository(registry, repository)]
        commands.append(shlex.join(["docker", "push", tag]))
    return commands


def _copy(registry: str, images: list[str]) -> list[str]:
    commands = []
    for host in sorted({image.split("/")[0] for image in images}):
        if ecr := _ECR.fullmatch(host):
            commands.append(_login(host, ecr["region"]))
    for image in images:
        name = image.split("/", 1)[1]
        commands += _make_repository(registry, re.split("[:@]", name)[0])
        commands.append(shlex.join(["crane", "copy", image, f"{registry}/{name}"]))
    return commands


def _login(host: str, region: str) -> str:
    password = f"aws ecr get-login-password --region {region}"
    return f"{password} | docker login --username AWS --password-stdin {host}"


def _make_repository(registry: str, repository: str) -> list[str]:
    """Other registries than ECR make a repository when something is pushed to it."""
    ecr = _ECR.fullmatch(registry)
    if not ecr:
        return []
    name = f"{ecr['folder']}/{repository}" if ecr["folder"] else repository
    where = f"--region {ecr['region']}"
    there = f"aws ecr describe-repositories {where} --repository-names {name}"
    return [f"{there} >/dev/null 2>&1 || aws ecr create-repository {where} --repository-name {name}"]


if __name__ == "__main__":
    try:
        main()
    except BiremeError as error:
        sys.exit(f"error: {error}")
