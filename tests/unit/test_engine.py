"""hack/engine: what starts a container engine, and what starts containers where root lacks a capability."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

ENGINE = Path(__file__).parents[2] / "hack/engine"


def executable(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def run(path: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)


def test_where_an_engine_answers_nothing_is_done(tmp_path: Path) -> None:
    executable(tmp_path / "docker", f'echo "$@" >> {tmp_path}/asked')
    # Nothing else is on PATH, so that the script can do no harm to the machine of the test.
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = run(str(tmp_path), str(ENGINE / "start"))
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
    executable(tmp_path / "runc", 'echo "$@"')
    config, exec_ = tmp_path / "config.json", tmp_path / "exec.json"
    config.write_text(json.dumps({"process": process, "hostname": "a"}))
    exec_.write_text(json.dumps(process))
    for line in (f"--root /r create --bundle {tmp_path} id", f"exec --process={exec_} id", "delete id"):
        done = run(f"{tmp_path}:/usr/bin:/bin", str(ENGINE / "nested-runtime"), *line.split())
        assert (done.returncode, done.stdout) == (0, f"{line}\n"), done.stderr
    assert json.loads(config.read_text()) == {"process": left, "hostname": "a"}
    assert json.loads(exec_.read_text()) == left
