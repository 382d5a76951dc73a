"""hack/engine: what starts a container engine, and what starts containers where root lacks a capability."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

ENGINE = Path(__file__).parents[2] / "hack/engine"


def run(folder: Path, *command: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run a command that finds ``programs``, shell scripts, before all others."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)


def test_where_an_engine_answers_nothing_is_done(tmp_path: Path) -> None:
    asked = f'echo "$@" >> {tmp_path}/asked'
    done = run(tmp_path, str(ENGINE / "start"), docker=asked)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "asked").read_text() == "info\n"


def test_the_runtime_of_such_hosts_asks_for_nothing_that_root_lacks(tmp_path: Path) -> None:
    process = {
        "capabilities": {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"], "effective": ["CAP_SYS_RESOURCE"]},
        "oomScoreAdj": -998,
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1048576, "soft": 1048576}],
        "cwd": "/",
    }
    left = {"capabilities": {"bounding": ["CAP_CHOWN"], "effective": []}, "oomScoreAdj": 0, "cwd": "/"}
    config, exec_ = tmp_path / "config.json", tmp_path / "exec.json"
    config.write_text(json.dumps({"process": process, "hostname": "a"}))
    exec_.write_text(json.dumps(process))
    for line in (f"--root /r create --bundle {tmp_path} id", f"exec --process={exec_} id", "delete id"):
        done = run(tmp_path, str(ENGINE / "nested-runtime"), *line.split(), runc='echo "$@"')
        assert (done.returncode, done.stdout) == (0, f"{line}\n"), done.stderr
    assert json.loads(config.read_text()) == {"process": left, "hostname": "a"}
    assert json.loads(exec_.read_text()) == left
