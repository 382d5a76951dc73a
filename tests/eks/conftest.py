"""What the tests of hack/eks share: the project's folder, and Terraform's findings about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Where an image or a distribution keeps providers that Terraform need not download.
MIRRORS = [*Path("/opt").glob("*/registry.terraform.io"), *Path("/usr/share/terraform").glob("*/registry.*")]


@dataclass(frozen=True)
class Terraform:
    """Terraform in a copy of hack/eks, with the provider and without AWS."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        binary = shutil.which("terraform")
        assert binary, (
            "these tests need terraform 1.9 or newer on PATH: developer.hashicorp.com/terraform/install"
        )
        environment = {**os.environ, **self.env, "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}
        return subprocess.run(
            [binary, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def copied(folder: Path, env: Mapping[str, str]) -> Terraform:
    """Terraform in a copy of hack/eks below ``folder``, initialised."""
    for part in ("hack/eks", "values"):
        ignored = shutil.ignore_patterns(".terraform*", "*.tfstate*")
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    found = Terraform(folder / "hack/eks", env)
    mirror = [f"-plugin-dir={MIRRORS[0].parent}"] if MIRRORS else []
    done = found.run("init", "-backend=false", "-no-color", *mirror)
    assert done.returncode == 0, done.stderr
    return found


@pytest.fixture(scope="session")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    return copied(tmp_path_factory.mktemp("project"), {})


@pytest.fixture(scope="session")
def states(terraform: Terraform) -> dict[str, dict[str, Any]]:
    """What each run of hack/eks/tests made with a mocked provider, by the run's name."""
    done = terraform.run("test", "-json", "-verbose")
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, [each["diagnostic"] for each in messages if each["type"] == "diagnostic"]
    return {each["@testrun"]: each["test_state"] for each in messages if each["type"] == "test_state"}
