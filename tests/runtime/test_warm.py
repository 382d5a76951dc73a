"""Processes forked from a template behave like fresh ones. Real torchrun: with_torch/test_warm_starts.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bireme_runtime.elastic.agent import warm
from tests.runtime.etcd_servers import RUNTIME

DRIVER = Path(__file__).with_name("warm_driver.py")


def run(script: Path, *arguments: str, **env: str) -> tuple[dict[str, Any], list[str], str]:
    """What the driver found, what the script printed line by line, and its errors."""
    finished = subprocess.run(
        [sys.executable, str(DRIVER), str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(RUNTIME), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    *printed, found = finished.stdout.splitlines()
    return json.loads(found), printed, finished.stderr


def write(folder: Path, text: str) -> Path:
    script = folder / "train.py"
    script.write_text(text)
    return script


def test_a_forked_script_has_its_own_arguments_environment_folder_modules_and_chances(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "import os\nprint('imported by', os.environ['RANK'])\nword = 'beside'\n"
    )
    script = write(
        tmp_path,
        "import sys\nprint('sqlite3' in sys.modules)\nimport sqlite3\nimport os, random, beside\n"
        "print(__name__, sys.argv[1:], os.environ['RANK'], beside.word, sys.modules['__main__'].__file__)\n"
        "print(os.getpid() == os.getpgrp() == os.getsid(0), 'BIREME_WARM_FD' in os.environ)\n"
        "print(random.random())\nraise SystemExit\n",
    )
    found, printed, _ = run(script, "--steps", "3")
    assert found["codes"] == [0, 0]
    first, second = printed[:5], printed[5:]
    for rank, lines in ((0, first), (1, second)):
        itself = f"__main__ ['--steps', '3'] {rank} beside {script}"
        assert lines[:-1] == ["True", f"imported by {rank}", itself, "True False"]
    assert first[-1] != second[-1]


def test_a_rank_asks_for_the_store_of_rank_0_when_that_is_open(tmp_path: Path) -> None:
    torch = tmp_path / "packages/torch"
    (torch / "distributed").mkdir(parents=True)
    (torch / "__init__.py").touch()
    (torch / "distributed/__init__.py").write_text("from torch.distributed import rendezvous")
    (torch / "distributed/rendezvous.py").write_text(
        "import socket\n"
        "def _create_c10d_store(hostname, port, rank, world_size, timeout):\n"
        "    with socket.socket() as tried:\n"
        "        return rank, tried.connect_ex((hostname, port)) == 0\n"
    )
    script = write(
        tmp_path,
        "import os, socket, threading, torch.distributed\n"
        "with socket.socket() as store:\n"
        "    store.bind(('127.0.0.1', 0))\n"
        "    address, rank = store.getsockname(), int(os.environ['RANK'])\n"
        "    late = threading.Timer(0.5 if rank else 30, store.listen)\n"
        "    late.start()\n"
        "    print(torch.distributed.rendezvous._create_c10d_store(*address, rank, 2, timeout=1))\n"
        "    late.cancel()\n",
    )
    _, printed, _ = run(script, PYTHONPATH=f"{RUNTIME}:{torch.parent}")
    assert printed == ["(0, False)", "(1, True)"]


def test_exit_codes_and_signals_are_those_of_a_fresh_process(tmp_path: Path) -> None:
    text = "import os, sys\nsys.exit(7) if os.environ['RANK'] == '0' else os.kill(os.getpid(), 9)\n"
    found, _, _ = run(write(tmp_path, text))
    assert found["codes"] == [7, -9]


def test_a_traceback_ends_with_the_script_and_atexit_runs(tmp_path: Path) -> None:
    script = write(tmp_path, "import atexit\natexit.register(print, 'bye')\nraise ValueError('no data')\n")
    found, printed, errors = run(script)
    assert found["codes"] == [1, 1]
    assert printed == ["bye", "bye"]
    assert errors.count("ValueError: no data") == 2
    assert f'File "{script}", line 3' in errors


def test_a_signal_reaches_the_script(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = write(
        tmp_path,
        "import os, pathlib, signal, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        f"    pathlib.Path({str(ready)!r}).touch()\n"
        "    time.sleep(600)\n",
    )
    found, _, _ = run(script, BIREME_TEST_READY=str(ready))
    assert found["codes"] == [0, 5]


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
# There is no device here: whoever looks at the open file is told that it is one.
DEVICE = """
import os
readlink, here = os.readlink, open(__file__)
os.readlink = lambda path: {!r} if path == f"/proc/self/fd/{{here.fileno()}}" else readlink(path)
"""


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (THREAD, "keeps 1 threads running"),
        (DEVICE.format("/dev/nvidia0"), "has opened /dev/nvidia0"),
        (DEVICE.format("/dev/neuron0"), "has opened /dev/neuron0"),
        (DEVICE.format("/dev/infiniband/uverbs0"), "has opened /dev/infiniband/uverbs0"),
    ],
    ids=["thread", "GPU", "Neuron", "EFA"],
)
def test_a_module_with_threads_or_an_open_device_makes_starts_cold(
    tmp_path: Path, module: str, why: str
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "busy.py").write_text(module)
    own = tmp_path / "own"
    own.mkdir()
    script = write(own, "import busy\n")
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        run(script, PYTHONPATH=f"{RUNTIME}{os.pathsep}{packages}")
    assert f"Unusable: an imported module {why}" in refusal.value.stderr


def test_a_program_that_is_no_python_script_starts_cold_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Handler:
        """As much as torch's SubprocessHandler has of a cold start."""

        def _popen(self, args: Sequence[str], env: Mapping[str, str]) -> str:
            return "cold"

    name = "torch.distributed.elastic.multiprocessing.api"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(SubprocessHandler=Handler))
    said: list[str] = []
    warm.fork_ranks_from(None, said.append)  # type: ignore[arg-type]
    assert Handler()._popen(["./train", "-u", "x"], {}) == "cold"
    assert Handler()._popen([sys.executable, "-u", "./train"], {}) == "cold"
    assert said == [
        "this rank starts cold: ./train is not started as a Python script",
        "this rank starts cold: ./train is neither a .py file nor a module",
    ]


def test_what_libraries_read_at_import_must_not_differ(tmp_path: Path) -> None:
    script = write(tmp_path, "import os\nprint(1)\n")
    template = warm.start((sys.executable, "-c", "pass"), {"OMP_NUM_THREADS": "1"})
    request = warm.ForkRequest("script", (str(script),), {"OMP_NUM_THREADS": "4"}, str(tmp_path))
    with pytest.raises(warm.Unusable, match="OMP_NUM_THREADS differs from what was set when"):
        template.ask(request)
    template.close()
    os.waitpid(template.pid, 0)


def test_the_imports_of_a_script_are_those_at_its_top_level(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import torch, numpy as np\nfrom torchvision import models\nfrom . import own\n"
        "def f():\n    import late\n",
    )
    assert warm.imports_of(script) == ["torch", "numpy", "torchvision"]
    assert warm.imports_of(write(tmp_path, "def broken(:\n")) == []
    assert warm.imports_of(tmp_path / "none.py") == []


# Torch's part, as far as ranks are started and waited for, and an agent that starts one again and again.
AN_AGENT = """
import contextlib, json, os, sys, time, types
from pathlib import Path
from bireme_runtime.elastic.agent import warm
from bireme_runtime.elastic.agent.supervisor import LAUNCHER
from bireme_runtime.process import children

class SubprocessHandler:
    def _popen(self, args, env):
        raise AssertionError("a cold start")

name = "torch.distributed.elastic.multiprocessing.api"
sys.modules[name] = types.SimpleNamespace(SubprocessHandler=SubprocessHandler)
script, restarts = sys.argv[1], int(sys.argv[2])
children.adopt_orphans()
template = warm.start((*LAUNCHER, script), os.environ)
warm.fork_ranks_from(template, print)

def kept():
    fields = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields.append(file.read_text().rpartition(")")[2].split())
    zombies = sum(field[0] == "Z" and field[1] == str(os.getpid()) for field in fields)
    both = [f"/proc/{pid}" for pid in ("self", template.pid)]
    looks = []
    for _ in range(3):
        # The template may be about to close what it has sent.
        time.sleep(1)
        looks.append([len(os.listdir(f"{each}/{what}")) for each in both for what in ("fd", "task")])
    return [zombies, *min(looks, key=sum)]

def restart():
    rank = SubprocessHandler()._popen((sys.executable, "-u", script), dict(os.environ))
    assert rank.wait(60) == 3

restart()
before = kept()
for _ in range(restarts):
    restart()
print(json.dumps([before, kept()]), flush=True)
template.close()
"""


@pytest.mark.parametrize("restarts", [10, pytest.param(1000, marks=pytest.mark.whole)])
def test_restarts_leave_no_zombie_thread_or_descriptor(tmp_path: Path, restarts: int) -> None:
    # Each rank leaves four loaders behind.
    loaders = "import os, sys\nfor _ in range(4):\n    if not os.fork():\n        os._exit(0)\nsys.exit(3)\n"
    finished = subprocess.run(
        [sys.executable, "-c", AN_AGENT, str(write(tmp_path, loaders)), str(restarts)],
        env={**os.environ, "PYTHONPATH": str(RUNTIME)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    before, after = json.loads(finished.stdout.splitlines()[-1])
    assert max(before[0], after[0]) <= 8, "those of the last rank, and of one that are reaped late"
    assert after[1:] == before[1:]
