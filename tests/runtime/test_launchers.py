"""What a launcher other than torchrun gets from the agent: variables, files, options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bireme_runtime.elastic.agent import launchers
from bireme_runtime.process.errors import Stop
from tests.runtime.etcd_servers import RUNTIME

NODE = launchers.Node(rank=1, nodes=("10.0.0.1", "10.0.0.2"), address="10.0.0.1", port=4321, processes=8)


def test_a_command_has_the_nodes_place_and_none_of_a_rank(tmp_path: Path) -> None:
    agent = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(RUNTIME), "BIREME_LAUNCHER_FOLDER": str(tmp_path),
        "GROUP_RANK": "1", "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "run",
        "PET_RDZV_BACKEND": "bireme-etcd", "PET_NPROC_PER_NODE": "8", "BIREME_NODES": "10.0.0.1,10.0.0.2",
        "PET_RDZV_ENDPOINT": "etcd:2379",
        "BIREME_LAUNCHER_PORT": "4321", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1", "TEAM": "vision",
    }  # fmt: skip
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    command = [sys.executable, "-m", launchers.__name__, "node", sys.executable, "-c", show]
    env = json.loads(subprocess.run(command, env=agent, capture_output=True, check=True).stdout)
    assert {key: env[key] for key in NODE.environment()} == NODE.environment()
    assert env["TEAM"] == "vision"
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "PET_RDZV_BACKEND"} & env.keys()
    # The fence asks etcd below a launcher, too.
    assert env["BIREME_FENCE_ENDPOINT"] == "etcd:2379"
    assert Path(env["BIREME_HOSTFILE"]).read_text() == "10.0.0.1 slots=8\n10.0.0.2 slots=8\n"
    config = json.loads(Path(env["BIREME_ACCELERATE_CONFIG"]).read_text())
    assert (config["num_machines"], config["machine_rank"], config["num_processes"]) == (2, 1, 16)


def test_the_place_wins_over_the_configuration_of_the_values() -> None:
    config = NODE.accelerate({"num_machines": 9, "mixed_precision": "bf16"})
    assert (config["num_machines"], config["mixed_precision"]) == (2, "bf16")
    assert (config["main_process_ip"], config["main_process_port"]) == ("10.0.0.1", 4321)


def test_deepspeed_starts_on_each_node_without_ssh(tmp_path: Path) -> None:
    command = NODE.command("deepspeed", tmp_path, ["train.py", "--lr", "1"])
    assert command[2:] == [
        "-m", "deepspeed.launcher.runner", f"--hostfile={tmp_path}/hostfile", "--no_ssh", "--node_rank=1",
        "--master_addr=10.0.0.1", "--master_port=4321", "train.py", "--lr", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "arguments", "sentence"),
    [
        ("node", ["no-such-command"], "there is no command no-such-command"),
        ("accelerate", ["train.py"], "launcher accelerate needs the Python package accelerate"),
        ("deepspeed", [], "launcher deepspeed has nothing to run"),
        ("horovod", ["train.py"], "BIREME_LAUNCHER=horovod is none of"),
    ],
)
def test_a_launcher_that_cannot_start_says_so(kind: str, arguments: list[str], sentence: str) -> None:
    env = {"BIREME_LAUNCHER": kind, "PATH": os.environ["PATH"]}
    with pytest.raises(Stop, match=sentence):
        launchers.torchrun_arguments(env, arguments)
