"""Jobs in images that cannot run bireme-runtime: stock torchrun and stock mpirun, started by a shell."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.rendered import RenderChart, container_of, environment_of, pod_of, the

IMAGE = {"image": {"repository": "team/train", "tag": "1"}}
STOCK = "values/stock-torchrun.yaml"


def run(trainer: Any, env: dict[str, str], tools: Path) -> list[str]:
    """What the container's process becomes, with programs of the image that only print their words."""
    show = '#!/bin/sh\necho "$(basename $0)" "$@" >>%s\n' % (tools / "calls")
    for name in ("python3", "mpirun", "ssh", "sshd"):
        (tools / name).write_text(show)
        (tools / name).chmod(0o755)
    (tools / "ssh-keygen").write_text("#!/bin/sh\necho ecdsa KEY comment\n")
    (tools / "ssh-keygen").chmod(0o755)
    command = [word.replace("$$", "$") for word in [*trainer["command"], *trainer.get("args", ())]]
    done = subprocess.run(
        command, env={"PATH": f"{tools}:/usr/bin:/bin", **env}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return (tools / "calls").read_text().splitlines()


def test_stock_torchrun_meets_at_worker_0_and_no_runtime_is_mounted(
    render: RenderChart, tmp_path: Path
) -> None:
    values = {
        "elastic": {"minWorkers": 2},
        "workers": 2,
        "args": ["train.py", "two words"],
        "env": {"PYTHONPATH": "/own"},
    }
    found = render("torch-elastic", instance="p4d.24xlarge", files=[STOCK], values=values)
    pod = pod_of(found)
    trainer = container_of(pod, "trainer")
    assert not [each.name for each in found.manifests if "runtime" in each.name]
    assert "bireme_runtime" not in json.dumps(pod)
    env = environment_of(trainer)
    assert (env["PYTHONPATH"], env["PET_RDZV_BACKEND"], env["PET_NNODES"]) == ("/own", "c10d", "2:128")
    calls = run(trainer, {"JOB_COMPLETION_INDEX": "0", "PET_RDZV_ENDPOINT": "a.b:1"}, tmp_path)
    assert calls[-1] == "python3 -m torch.distributed.run train.py two words"
    assert "successPolicy" not in the(found, "Job")["spec"]


@pytest.mark.parametrize("orchestrator", ["Job", "MPIJob"])
def test_stock_mpirun_has_the_hosts_and_the_other_pods_serve_ssh(
    render: RenderChart, tmp_path: Path, orchestrator: str
) -> None:
    values = IMAGE | {
        "launch": {"runtime": False},
        "workers": 2,
        "args": ["./all_reduce", "-b", "8"],
        "script": "",
    }
    values |= {"mpi": {"mpirunArgs": ["-x", "NCCL_DEBUG"], "orchestrator": orchestrator}}
    found = render("mpi-training", instance="p4d.24xlarge", values=values)
    if orchestrator == "Job":
        roles = {role: container_of(pod_of(found), "trainer") for role in ("launcher", "worker")}
    else:
        specs = the(found, "MPIJob").thaw()["spec"]["mpiReplicaSpecs"]
        roles = {
            role.lower(): container_of(spec["template"]["spec"], "trainer") for role, spec in specs.items()
        }
    for index, (role, trainer) in enumerate(roles.items()):
        folder = tmp_path / role
        folder.mkdir()
        (folder / "id_rsa").write_text("KEY\n")
        env = {"BIREME_MPI_FOLDER": str(folder), "BIREME_MPI_KEY": str(folder / "id_rsa")}
        env |= {"JOB_COMPLETION_INDEX": str(index)} if orchestrator == "Job" else {}
        calls = run(trainer, environment_of(trainer) | env, folder)
        if role == "worker":
            assert calls == [f"sshd -D -e -f {folder}/sshd_config"]
            # CVE-2024-6387 needs a login whose time is over, and nobody knows the sshd of the image.
            assert "LoginGraceTime 0" in (folder / "sshd_config").read_text().splitlines()
        else:
            assert calls[-1] == (
                "mpirun -np 16 --hostfile /bireme/mpi/hostfile -x NCCL_DEBUG ./all_reduce -b 8"
            )
            hosts = [line.split()[0] for line in (folder / "hostfile").read_text().splitlines()]
            assert [shlex.split(call)[3] for call in calls if call.startswith("ssh ")] == hosts
            assert len(hosts) == 2
