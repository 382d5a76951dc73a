"""The image of kind's nodes: the official one where a registry answers, else one built here."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bireme.clusters.kind.engine import Engine
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.core.progress import note, step
from bireme.tools import Toolbox
from bireme.tools.store import make_once

OFFICIAL = "kindest/node"
LOCAL = "bireme/node"

_REGISTRY = "https://registry-1.docker.io/v2/"
_REGISTRY_SECONDS = 2.5
_ARCHIVE = "image.tar"
_KUBERNETES = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubeadm",
    "kubectl",
    "kubelet",
)
_OTHERS = (
    "containerd",
    "containerd-shim-runc-v2",
    "coredns",
    "crictl",
    "ctr",
    "etcd",
    "host-local",
    "loopback",
    "portmap",
    "ptp",
)
_ROOT_FILE_SYSTEMS = ("kind-node", "kube-proxy")


@dataclass(frozen=True)
class NodeImages:
    """Gives the engine the node image of a Kubernetes version."""

    paths: Paths
    toolbox: Toolbox
    engine: Engine
    console: Console | None = None

    def ensure(self, kubernetes: str) -> str:
        """The name of a node image of ``kubernetes`` (e.g. ``1.36.3``) that the engine has.

        In this order: the official one that is there or can be pulled, one built here that is there, in the
        cache, or built now. Raises BiremeError.
        """
        official = f"{OFFICIAL}:v{kubernetes}"
        if self.engine.image_id(official):
            return official
        local = f"{LOCAL}:{kubernetes}-{self._digest(kubernetes)}"
        if self.engine.image_id(local):
            return local
        if _registry_answers() and self.engine.succeeds("pull", "--quiet", official):
            return official
        self._build_or_load(local, kubernetes)
        return local

    def _build_or_load(self, image: str, kubernetes: str) -> None:
        folder = self.paths.cache / "kind" / image.replace("/", "-").replace(":", "-")
        built = make_once(
            folder,
            lambda partial: self._build(image, kubernetes, partial / _ARCHIVE),
            waiting=lambda: note(self.console, f"another process is building {image}, waiting for it"),
        )
        if not built and not self.engine.image_id(image):
            note(self.console, f"loading {image} from the cache")
            self.engine("load", "--quiet", "--input", str(folder / _ARCHIVE))

    def _build(self, image: str, kubernetes: str, archive: Path) -> None:
        note(self.console, f"no registry answers: {image} is built here")
        binaries = self.toolbox.ensure([f"{name}@{kubernetes}" for name in _KUBERNETES] + list(_OTHERS))
        build = str(self.paths.hack / "images" / "build.py")
        roots = self._run([sys.executable, build, "rootfs", *_ROOT_FILE_SYSTEMS]).split()
        with tempfile.TemporaryDirectory() as scratch:
            for name, binary in binaries.items():
                Path(scratch, name.partition("@")[0]).symlink_to(binary)
            kind = self.toolbox.source("kind")
            with step(self.console, f"building {image}"):
                self._run([str(self._recipe / "build"), scratch, str(kind), *roots, image])
        with step(self.console, f"saving {image}"):
            self.engine("save", "--output", str(archive), image)

    def _run(self, command: list[str]) -> str:
        # Its progress is for the person at the terminal, and so is what it says when it fails.
        done = subprocess.run(
            command,
            cwd=self.paths.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BiremeError(f"no node image: {Path(command[0]).name} failed, the lines above say why")
        return done.stdout

    @property
    def _recipe(self) -> Path:
        return self.paths.hack / "kind"

    def _digest(self, kubernetes: str) -> str:
        """Changes with everything the image is made of."""
        pins = [self.toolbox.pin(name, kubernetes).cache_name for name in _KUBERNETES]
        pins += [self.toolbox.pin(name).cache_name for name in (*_OTHERS, "kind")]
        recipes = tomllib.loads((self.paths.hack / "images" / "recipes.toml").read_text(encoding="utf-8"))
        roots = [recipes["defaults"], *(recipes["rootfs"][name] for name in _ROOT_FILE_SYSTEMS)]
        digest = hashlib.sha256(json.dumps([pins, roots, _bounding_set()]).encode())
        for file in sorted(self._recipe.iterdir()):
            digest.update(file.read_bytes())
        return digest.hexdigest()[:12]


def _registry_answers() -> bool:
    try:
        urllib.request.urlopen(_REGISTRY, timeout=_REGISTRY_SECONDS).close()
    except urllib.error.HTTPError as error:
        # A registry asks for credentials, which `docker pull` gets itself; a proxy in between refuses.
        return error.code == 401
    except OSError:
        return False
    return True


def _bounding_set() -> str:
    """The capabilities that this host grants: the image is built for them."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return os.uname().sysname
    return next(line for line in status.splitlines() if line.startswith("CapBnd"))
