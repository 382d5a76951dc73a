"""Root file systems made of Debian packages: for chroots, and for images where no registry answers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from bireme.errors import BiremeError
from bireme.store import make_once

RECIPES = Path(__file__).resolve().parent / "recipes.toml"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LINES_OF_A_FAILURE = 20


@dataclass(frozen=True)
class Rootfs:
    """One [rootfs.*] recipe; see recipes.toml for the fields."""

    name: str
    suite: str
    packages: tuple[str, ...]
    leave_out: tuple[str, ...]
    check: str
    wheels: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Names the content: other packages, another folder."""
        facts = asdict(self) | {"name": "", "env": {}}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def load_rootfs(name: str) -> Rootfs:
    """The recipe called ``name``."""
    recipes = tomllib.loads(RECIPES.read_text())
    if name not in recipes["rootfs"]:
        raise BiremeError(
            f"no root file system {name}: hack/images/recipes.toml has {', '.join(recipes['rootfs'])}"
        )
    recipe, defaults = recipes["rootfs"][name], recipes["defaults"]
    recipe = recipes["rootfs"].get(recipe.get("like"), {}) | recipe
    return Rootfs(
        name,
        recipe["suite"],
        tuple(recipe["packages"]),
        tuple(defaults["leave-out"] + recipe.get("leave-out", [])),
        recipe.get("check", ""),
        tuple(recipe.get("wheels", [])),
        recipe.get("env", {}),
    )


def ensure_rootfs(rootfs: Rootfs, cache: Path, console: Console) -> Path:
    """The folder ``<cache>/rootfs/<digest>``, made if missing; ``<cache>/rootfs/<name>`` links to it.

    Needs root, debootstrap and a Debian mirror, another one if BIREME_DEBIAN_MIRROR names it;
    BiremeError says which of them failed and how.
    """
    folder = cache / "rootfs" / rootfs.digest
    make_once(
        folder,
        lambda partial: _Maker(rootfs, partial, console).make(),
        waiting=lambda: console.print(f"another process makes {rootfs.name}, waiting for it", style="dim"),
    )
    _link(folder.with_name(rootfs.name), folder)
    return folder


def enter(
    root: Path,
    command: Sequence[str],
    binds: Mapping[Path, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """The command line that runs ``command`` inside ``root``, in a mount namespace that ends with it.

    ``binds`` maps folders outside to folders inside. /proc, /dev and an empty /dev/shm and /tmp are there.
    """
    mounts = [
        'mount -t proc proc "$0/proc"',
        'mount --rbind /dev "$0/dev"',
        'mount -t tmpfs -o mode=1777 shm "$0/dev/shm"',
        'mount -t tmpfs -o mode=1777 tmp "$0/tmp"',
    ]
    arguments = [str(root)]
    for outside, inside in (binds or {}).items():
        arguments += [str(outside), inside]
        mounts.append('mkdir -p "$0$2" && mount --bind "$1" "$0$2" && shift 2')
    variables = [
        f"{key}={value}"
        for key, value in ({"PATH": _PATH, "HOME": "/tmp", "LC_ALL": "C.UTF-8"} | dict(env or {})).items()
    ]
    script = " && ".join([*mounts, 'exec chroot "$0" "$@"'])
    return ["unshare", "--mount", "sh", "-c", script, *arguments, "env", "-i", *variables, *command]


def _link(link: Path, folder: Path) -> None:
    if link.is_symlink() and os.readlink(link) == folder.name:
        return
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.symlink_to(folder.name)
    fresh.replace(link)


@dataclass(frozen=True)
class _Maker:
    rootfs: Rootfs
    root: Path
    console: Console

    def make(self) -> None:
        if os.geteuid() != 0:
            raise BiremeError("a root file system is made by root: run this with sudo")
        if not shutil.which("debootstrap"):
            raise BiremeError("debootstrap is missing: apt-get install debootstrap")
        self._debootstrap()
        self._settings()
        self._install()
        if self.rootfs.wheels:
            self._wheels()
        self._clean()
        if self.rootfs.check:
            self._chroot("check", "python3", "-c", self.rootfs.check)

    def _debootstrap(self) -> None:
        arguments = [
            "--variant=minbase",
            "--components=main",
            self.rootfs.suite,
            str(self.root),
            # Else debootstrap's own choice for the suite.
            *filter(None, [os.environ.get("BIREME_DEBIAN_MIRROR")]),
        ]
        # In a mount namespace of its own: whatever it mounts is gone when it ends, however it ends.
        self._run("debootstrap", ["unshare", "--mount", "debootstrap", *arguments])

    def _settings(self) -> None:
        (self.root / "etc/dpkg/dpkg.cfg.d/bireme").write_text("force-unsafe-io\n")
        (self.root / "etc/apt/apt.conf.d/bireme").write_text(
            'APT::Install-Recommends "false";\nAcquire::Languages "none";\n'
            # Snapshots and mirrors of unreleased suites carry old dates.
            'Acquire::Check-Valid-Until "false";\n'
        )

    def _install(self) -> None:
        self._chroot("apt-get update", "apt-get", "update")
        self._chroot(
            f"install {len(self.rootfs.packages)} packages and what they need",
            "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", *self.rootfs.packages,
        )  # fmt: skip

    def _wheels(self) -> None:
        (version,) = [path.name for path in (self.root / "usr/lib").glob("python3.*")]
        target = f"usr/local/lib/{version}/dist-packages"
        options = ["--no-deps", "--no-compile", "--only-binary=:all:", "--target", str(self.root / target)]
        options += ["--python-version", version.removeprefix("python")]
        self._run("wheels", ["python3", "-m", "pip", "install", *options, *self.rootfs.wheels])
        for script in (self.root / target).glob("bin/*"):
            # Its first line names the Python that installed it, which is not the one inside.
            _, _, program = script.read_text().partition("\n")
            inside = self.root / "usr/local/bin" / script.name
            inside.write_text(f"#!/usr/bin/python3\n{program}")
            inside.chmod(0o755)
        self._chroot("compile wheels", "python3", "-m", "compileall", "-q", f"/{target}")

    def _clean(self) -> None:
        for pattern in self.rootfs.leave_out:
            for path in list(self.root.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")

    def _chroot(self, title: str, *command: str) -> None:
        self._run(title, enter(self.root, command))

    def _run(self, title: str, command: Sequence[str]) -> None:
        started = time.monotonic()
        with self.console.status(f"{self.rootfs.name}: {title} …"):
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        if done.returncode:
            tail = "\n".join(done.stdout.splitlines()[-_LINES_OF_A_FAILURE:])
            raise BiremeError(f"root file system {self.rootfs.name}: {title} failed:\n{tail}")
        self.console.print(
            f"{self.rootfs.name}: {title}, {time.monotonic() - started:.0f} s", style="dim", highlight=False
        )
