"""`make test-gpu` runs to its end on CPUs. What needs a GPU is left out there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.runtime.with_torch.conftest import ROOT

pytestmark = pytest.mark.whole


def test_the_program_for_a_gpu_runs_on_cpus(etcd_binary: Path) -> None:
    binds = [(Path(__file__).parents[3], "srv"), (etcd_binary.parent, "opt"), (Path("/proc"), "proc")]
    mounts = [f"mount --rbind {source} {ROOT}/{target}" for source, target in [*binds, (Path("/dev"), "dev")]]
    program = "python3 -m tests.gpu --device cpu --etcd /opt/etcd -o json"
    inside = " && ".join([*mounts, f"exec chroot {ROOT} sh -c 'cd /srv && exec {program}'"])
    done = subprocess.run(["unshare", "--mount", "sh", "-c", inside], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["checks"]) == 8
