"""Build every image of the project and push it to a registry.

    python hack/images/publish.py 123456789012.dkr.ecr.us-west-2.amazonaws.com
    python hack/images/publish.py --dry-run ghcr.io/someone

REGISTRY is a host, and a folder if it has folders; charts use the images with
--set global.imageRegistry=REGISTRY. Each images/*/Dockerfile is built on its default base. For ECR this logs
in with the AWS command line and makes missing repositories; log in to other registries before.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click

from bireme.errors import BiremeError

PROJECT = Path(__file__).resolve().parents[2]
_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d+)?(/[a-z0-9]+([._-][a-z0-9]+)*)*")
_ECR = re.compile(
    r"(?P<host>\d{12}\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?)(/(?P<folder>.*))?"
)


@click.command(help=__doc__)
@click.argument("registry")
@click.option("--dry-run", is_flag=True, help="Print the commands instead")
def main(registry: str, dry_run: bool) -> None:
    for step in steps(registry.rstrip("/"), PROJECT):
        click.echo(step if dry_run else f"+ {step}", err=not dry_run)
        if not dry_run and subprocess.run(["bash", "-euo", "pipefail", "-c", step], check=False).returncode:
            raise BiremeError(f"this command failed, see its output above: {step}")


def steps(registry: str, project: Path) -> list[str]:
    """The shell commands, in order. Raises BiremeError when ``registry`` cannot be one."""
    if not registry:
        raise BiremeError("no registry: say where to push, as in make images REGISTRY=ghcr.io/someone")
    if not _REGISTRY.fullmatch(registry):
        raise BiremeError(
            f"{registry} is not a registry: write a host without https://, as in ghcr.io/someone"
        )
    version = tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"]
    recipes = tomllib.loads((project / "hack/images/recipes.toml").read_text())["image"].values()
    contexts = {recipe["dockerfile"]: recipe["context"] for recipe in recipes if "context" in recipe}
    ecr = _ECR.fullmatch(registry)
    commands = [_login(ecr["host"], ecr["region"])] if ecr else []
    for file in sorted(project.glob("images/*/Dockerfile")):
        dockerfile, repository = str(file.relative_to(project)), f"bireme/{file.parent.name}"
        tag = f"{registry}/{repository}:{version}"
        context = contexts.get(dockerfile, str(Path(dockerfile).parent))
        build = ["docker", "build", "--platform", "linux/amd64", "--tag", tag, "--file", dockerfile, context]
        commands.append(_in(project, shlex.join(build)))
        if ecr:
            folder = f"{ecr['folder']}/" if ecr["folder"] else ""
            commands.append(_make_repository(f"{folder}{repository}", ecr["region"]))
        commands.append(shlex.join(["docker", "push", tag]))
    return commands


def _in(folder: Path, command: str) -> str:
    return command if folder == Path.cwd() else f"cd {shlex.quote(str(folder))} && {command}"


def _login(host: str, region: str) -> str:
    password = f"aws ecr get-login-password --region {region}"
    return f"{password} | docker login --username AWS --password-stdin {host}"


def _make_repository(name: str, region: str) -> str:
    where = f"--region {region}"
    there = f"aws ecr describe-repositories {where} --repository-names {name}"
    return f"{there} >/dev/null 2>&1 || aws ecr create-repository {where} --repository-name {name}"


if __name__ == "__main__":
    try:
        main()
    except BiremeError as error:
        sys.exit(f"error: {error}")
