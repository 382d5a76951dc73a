"""Make the project's images, and the root file systems under them, without a container registry.

    python hack/images/build.py rootfs torch-2.6    # prints the folder, usable as a chroot
    python hack/images/build.py image torch         # prints the tag; needs a container engine
    python hack/images/build.py node                # the same for the nodes of kind clusters

Recipes are in recipes.toml. Results are kept, and made again only when their recipe changes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rootfs import RECIPES, Rootfs, ensure_rootfs, load_rootfs

from bireme.clusters.kind.engine import Engine
from bireme.clusters.kind.node_image import NodeImages
from bireme.core.errors import BiremeError, run
from bireme.core.paths import Paths
from bireme.core.progress import step
from bireme.tools import Toolbox

CONSOLE = Console(stderr=True)
PATHS = Paths.discover(start=Path(__file__))
_BIN = "/usr/local/bin"


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.argument("names", nargs=-1, required=True)
def rootfs(names: tuple[str, ...]) -> None:
    """Make root file systems and print their folders."""
    for name in names:
        print(ensure_rootfs(load_rootfs(name), PATHS.cache, CONSOLE))


@main.command()
@click.argument("names", nargs=-1, required=True)
def image(names: tuple[str, ...]) -> None:
    """Make images and print their tags."""
    recipes = tomllib.loads(RECIPES.read_text())["image"]
    for name in names:
        if name not in recipes:
            raise BiremeError(f"no image {name}: hack/images/recipes.toml has {', '.join(recipes)}")
        print(make_image(recipes[name]))


@main.command()
def node() -> None:
    """Get or make the node image of kind clusters and print its tag."""
    toolbox = Toolbox(PATHS, CONSOLE)
    images = NodeImages(PATHS, toolbox, Engine(), CONSOLE)
    print(images.ensure(toolbox.pin("kube-apiserver").version))


def make_image(recipe: dict[str, Any]) -> str:
    """Make one [image.*] and return its tag."""
    tag, parts = str(recipe["tag"]), {}
    if "rootfs" in recipe:
        parts["BASE"] = _import_rootfs(load_rootfs(recipe["rootfs"]))
    if "tools" in recipe:
        toolbox = Toolbox(PATHS, CONSOLE)
        tag = tag.format(version=toolbox.pin(recipe["tools"][0]).version)
        parts["TOOLS"] = _import_tools(toolbox, recipe["tools"])
    if "dockerfile" in recipe:
        dockerfile = PATHS.root / recipe["dockerfile"]
        context = PATHS.root / recipe["context"] if "context" in recipe else dockerfile.parent
        with tempfile.TemporaryDirectory() as wheels:
            if "python" in recipe:
                _make_wheels(recipe["python"], wheels)
                context, parts["PIP_NO_INDEX"] = Path(wheels), "1"
            arguments = [word for name, part in parts.items() for word in ("--build-arg", f"{name}={part}")]
            with step(CONSOLE, f"{tag}: docker build"):
                _docker("build", "--tag", tag, *arguments, "--file", str(dockerfile), str(context))
    else:
        (only,) = parts.values()
        _docker("tag", only, tag)
    return tag


def _make_wheels(python: str, folder: str) -> None:
    """Write wheels of bireme and of all that it needs."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with step(CONSOLE, "wheels of bireme"):
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, str(PATHS.root)], check=True)
        own = [str(file) for file in Path(folder).glob("*.whl")]
        options = ["--only-binary=:all:", "--python-version", python, "--dest", folder]
        subprocess.run([*pip, "download", *options, *own], check=True)


def _import_rootfs(rootfs: Rootfs) -> str:
    """The image of ``rootfs`` alone; it is named by the digest, so that it is imported only once."""
    name = f"bireme/{rootfs.name}:{rootfs.digest}"
    if Engine().image_id(name):
        return name
    folder = ensure_rootfs(rootfs, PATHS.cache, CONSOLE)
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8", **rootfs.env}
    archive = ["tar", "-C", str(folder), "--sort=name", "--numeric-owner", "--exclude=./dev/*", "-c", "."]
    return _import(name, archive, [f"ENV {key}={value}" for key, value in variables.items()])


def _import_tools(toolbox: Toolbox, tools: Sequence[str]) -> str:
    """The image of these pinned tools alone, named by their digest; it runs the first one."""
    digest = hashlib.sha256("".join(toolbox.pin(tool).cache_name for tool in tools).encode()).hexdigest()
    name = f"bireme/{tools[0]}:{digest[:12]}"
    if Engine().image_id(name):
        return name
    archive = ["tar", "--dereference", "--owner=0", "--group=0", "--mode=755", "-P", "-c"]
    archive += [f"--transform=s,.*/,{_BIN.lstrip('/')}/,", *(str(toolbox.path(tool)) for tool in tools)]
    return _import(name, archive, [f"ENV PATH={_BIN}", f'ENTRYPOINT ["{_BIN}/{tools[0]}"]'])


def _import(name: str, archive: Sequence[str], changes: Sequence[str]) -> str:
    """The image of what the command ``archive``, a tar, writes."""
    with step(CONSOLE, f"{name}: docker import"), subprocess.Popen(archive, stdout=subprocess.PIPE) as tar:
        _docker("import", *(f"--change={each}" for each in changes), "-", name, stdin=tar.stdout)
    if tar.returncode:
        _docker("image", "rm", name)
        raise BiremeError(f"{name} could not be read: tar says why, above")
    return name


def _docker(*arguments: str, stdin: Any = subprocess.DEVNULL) -> None:
    # The engine of Debian 12 has only the old builder.
    environ = os.environ | {"DOCKER_BUILDKIT": "0"}
    try:
        command = ["docker", *arguments]
        done = subprocess.run(command, env=environ, stdin=stdin, capture_output=True, check=False)
    except FileNotFoundError:
        raise BiremeError("docker is missing: run hack/engine/start, or install a container engine") from None
    if done.returncode:
        output = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise BiremeError(f"docker {arguments[0]} failed:\n{output}")


if __name__ == "__main__":
    run(main)
