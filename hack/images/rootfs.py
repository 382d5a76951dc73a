"""Root file systems made of Debian packages: for chroots, and for images where no registry answers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bireme.core.errors import BiremeError
from bireme.core.progress import note, step
from bireme.tools.store import make_once

PROJECT = Path(__file__).resolve().parents[2]
RECIPES = PROJECT / "hack" / "images" / "recipes.toml"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LINES_OF_A_FAILURE = 20


@dataclass(frozen=True)
class Build:
    """A program that is compiled inside; see recipes.toml.

    ``source`` is NAME==VERSION --hash=sha256:… or a file of the project; ``packages`` are removed afterwards.
    """

    script: str
    source: str
    packages: tuple[str, ...]

    @property
    def program(self) -> Path:
        return PROJECT / self.script

    @property
    def own_source(self) -> Path | None:
        """The source, if it is the project's."""
        return None if "==" in self.source else PROJECT / self.source

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the project that determine the result."""
        return tuple(filter(None, (self.program, self.own_source)))


@dataclass(frozen=True)
class Rootfs:
    """One [rootfs.*] recipe; see recipes.toml for the fields."""

    name: str
    suite: str
    packages: tuple[str, ...]
    leave_out: tuple[str, ...]
    check: str
    wheels: tuple[str, ...]
    build: tuple[Build, ...]
    run: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def digest(self) -> str:
        """The name of the content; it changes with everything that is installed."""
        facts = asdict(self) | {"name": "", "env": {}}
        for field in ("build", "run"):  # added later: recipes without them keep their digest
            if not facts[field]:
                del facts[field]
        programs = [file.read_text() for build in self.build for file in build.files]
        if programs:
            facts["programs"] = programs
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def load_rootfs(name: str) -> Rootfs:
    """The recipe called ``name``."""
    recipes = tomllib.loads(RECIPES.read_text())
    if name not in recipes["rootfs"]:
        raise BiremeError(
            f"no root file system {name}: hack/images/recipes.toml has {', '.join(recipes['rootfs'])}"
        )
    own = recipes["rootfs"][name]
    base = recipes["rootfs"].get(own.get("like"), {})
    recipe = base | own

    def joined(field: str) -> tuple[Any, ...]:
        return (*base.get(field, []), *own.get(field, []))

    return Rootfs(
        name=name,
        suite=recipe["suite"],
        packages=joined("packages"),
        leave_out=(*recipes["defaults"]["leave-out"], *joined("leave-out")),
        check=recipe.get("check", ""),
        wheels=joined("wheels"),
        build=tuple(
            Build(each["script"], each["source"], tuple(each["packages"])) for each in joined("build")
        ),
        run=joined("run"),
        env=recipe.get("env", {}),
    )


def ensure_rootfs(rootfs: Rootfs, cache: Path, console: Console) -> Path:
    """The folder ``<cache>/rootfs/<digest>``, made if missing.

    Needs root, debootstrap and a Debian mirror, another one if BIREME_DEBIAN_MIRROR names it;
    BiremeError says which of them failed and how.
    """
    folder = cache / "rootfs" / rootfs.digest
    make_once(
        folder,
        lambda partial: _Maker(rootfs, partial, console).make(),
        waiting=lambda: note(console, f"another process makes {rootfs.name}, waiting for it"),
    )
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


def fetch(package: str, folder: Path) -> Path:
    """The file of ``package`` (NAME==VERSION --hash=sha256:…), which pip puts into the new ``folder``."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--require-hashes", "--requirement", "/dev/stdin", "--dest", str(folder)]
    done = subprocess.run(command, input=package, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BiremeError(f"pip cannot fetch {package}:\n{done.stderr.strip()}")
    (file,) = folder.iterdir()
    return file


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
        self._chroot("apt-get update", "apt-get", "update")
        self._packages(self.rootfs.packages)
        if self.rootfs.wheels:
            self._wheels()
        for build in self.rootfs.build:
            self._build(build)
        for command in self.rootfs.run:
            self._chroot(command, "sh", "-c", command)
        self._clean()
        if self.rootfs.check:
            self._chroot("check", "python3", "-c", self.rootfs.check)

    def _debootstrap(self) -> None:
        arguments = [
            "--variant=minbase",
            "--components=main",
            self.rootfs.suite,
            str(self.root),
            # Without it, debootstrap chooses the mirror of the suite.
            *filter(None, [os.environ.get("BIREME_DEBIAN_MIRROR")]),
        ]
        # In its own mount namespace, so that nothing stays mounted when it ends or is killed.
        self._run("debootstrap", ["unshare", "--mount", "debootstrap", *arguments])

    def _settings(self) -> None:
        (self.root / "etc/dpkg/dpkg.cfg.d/bireme").write_text("force-unsafe-io\n")
        (self.root / "etc/apt/apt.conf.d/bireme").write_text(
            'APT::Install-Recommends "false";\nAcquire::Languages "none";\n'
            # Snapshots and mirrors of unreleased suites carry old dates.
            'Acquire::Check-Valid-Until "false";\n'
        )

    def _packages(self, names: Sequence[str]) -> None:
        self._chroot(
            f"install {len(names)} packages and what they need",
            "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", *names,
        )  # fmt: skip

    def _wheels(self) -> None:
        (version,) = [path.name for path in (self.root / "usr/lib").glob("python3.*")]
        target = f"usr/local/lib/{version}/dist-packages"
        options = ["--no-deps", "--no-compile", "--only-binary=:all:", "--target", str(self.root / target)]
        options += ["--python-version", version.removeprefix("python")]
        wanted = self.root / "tmp/wheels.txt"  # pip takes hashes from a file only
        wanted.write_text("\n".join(self.rootfs.wheels))
        self._run("wheels", ["python3", "-m", "pip", "install", *options, "--requirement", str(wanted)])
        for script in (self.root / target).glob("bin/*"):
            # Its first line names the Python that installed it, not the one inside.
            _, _, program = script.read_text().partition("\n")
            inside = self.root / "usr/local/bin" / script.name
            inside.write_text(f"#!/usr/bin/python3\n{program}")
            inside.chmod(0o755)
        self._chroot("compile wheels", "python3", "-m", "compileall", "-q", f"/{target}")

    def _build(self, build: Build) -> None:
        temporary = sorted(set(build.packages) - set(self.rootfs.packages))
        self._packages(temporary)
        with tempfile.TemporaryDirectory() as folder:
            for file in build.files:
                shutil.copy(file, folder)
            source = build.own_source or fetch(build.source, Path(folder) / "source")
            inside, at = "/tmp/build", "" if build.own_source else "source/"
            script, argument = f"{inside}/{build.program.name}", f"{inside}/{at}{source.name}"
            command = enter(self.root, ["sh", script, argument], {Path(folder): inside})
            self._run(f"build {source.name}", command)
        self._chroot("packages of the build", "apt-mark", "auto", *temporary)
        # Otherwise packages that any other one suggests would stay, for example compilers.
        only_needed = [
            f"-oAPT::AutoRemove::{relation}Important=false" for relation in ("Recommends", "Suggests")
        ]
        self._chroot("remove them", "apt-get", "autoremove", "--purge", "-y", *only_needed)

    def _clean(self) -> None:
        for pattern in self.rootfs.leave_out:
            for path in list(self.root.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")

    def _chroot(self, title: str, *command: str) -> None:
        self._run(title, enter(self.root, command))

    def _run(self, title: str, command: Sequence[str]) -> None:
        with step(self.console, f"{self.rootfs.name}: {title}"):
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
