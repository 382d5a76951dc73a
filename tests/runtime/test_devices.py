"""What a worker asked for and its container lacks: EFA's parts, and kernels for its GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bireme_runtime.elastic.agent import launch
from bireme_runtime.process import devices
from bireme_runtime.process.errors import CONFIG, TEMPORARY, Stop
from tests.runtime.etcd_servers import RUNTIME

PLUGIN = "libnccl-net-ofi.so"


class Container:
    """The part of a container's file system that EFA needs, and its environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file("dev/infiniband/uverbs0")
        self.file("sys/class/infiniband/rdmap16s27")
        self.file("lib/libfabric.so.1")
        self.file(f"lib/{PLUGIN}")
        self.limits("unlimited")
        self.program("fi_info", "echo provider: efa")
        self.env = {
            "PATH": str(root / "bin"),
            "LD_LIBRARY_PATH": str(root / "lib"),
            "BIREME_ACCELERATORS": "nvidia.com/gpu",
            "BIREME_EFA": "required",
        }

    def file(self, name: str, text: str = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name: str, does: str) -> None:
        self.file(f"bin/{name}", f"#!/bin/sh\n{does}\n").chmod(0o755)

    def limits(self, locked: str, rights: int = 0) -> None:
        """What the kernel says of a process: how much memory it may lock, and its capabilities."""
        line = f"Max locked memory         {locked:<20} {locked:<20} bytes"
        self.file("proc/self/limits", f"Max processes             10      10      processes\n{line}\n")
        self.file("proc/self/status", f"Name:\tpython3\nCapEff:\t{rights:016x}\n")

    def without(self, *names: str) -> None:
        for name in names:
            (self.root / name).unlink()

    def lack(self, **env: str) -> Stop | None:
        return devices.efa_lack({**self.env, **env}, self.root)


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_a_container_with_all_parts_lacks_nothing(container: Container) -> None:
    assert container.lack() is None
    container.without("bin/fi_info")
    assert container.lack() is None, "an image may have the library without its programs"


@pytest.mark.parametrize(
    ("gone", "words", "code"),
    [
        (["dev/infiniband/uverbs0"], "/dev/infiniband has no uverbs device", TEMPORARY),
        (["sys/class/infiniband/rdmap16s27"], "/sys/class/infiniband is empty", TEMPORARY),
        (["bin/fi_info", "lib/libfabric.so.1"], "the image has no libfabric", CONFIG),
        ([f"lib/{PLUGIN}"], f"the image has no {PLUGIN}", CONFIG),
    ],
)
def test_each_missing_part_is_named(container: Container, gone: list[str], words: str, code: int) -> None:
    container.without(*gone)
    lack = container.lack()
    assert lack is not None
    assert words in str(lack)
    assert "\n" not in str(lack)
    assert lack.code == code


def test_what_fi_info_says_is_passed_on(container: Container) -> None:
    container.program("fi_info", "echo 'fi_getinfo: -61 (No data available)' >&2; exit 61")
    lack = container.lack()
    assert lack is not None
    assert "fi_info -p efa: fi_getinfo: -61 (No data available)" in str(lack)


def test_workers_without_nccl_need_no_plugin(container: Container) -> None:
    container.without(f"lib/{PLUGIN}")
    assert container.lack(BIREME_ACCELERATORS="aws.amazon.com/neuron") is None


@pytest.mark.parametrize(
    ("library", "given", "taken"),
    [
        ("libnccl-net-ofi.so", {}, "ofi"),
        ("libnccl-net-aws-ofi.so", {}, "aws-ofi"),
        ("libnccl-net.so", {}, None),
        ("libnccl-net-aws-ofi.so", {"NCCL_NET_PLUGIN": "aws-ofi"}, "aws-ofi"),
        ("libnccl-net-own.so", {"NCCL_NET_PLUGIN": "own"}, "own"),
        ("libnccl-net-ofi.so", {"NCCL_NET_PLUGIN": "none"}, "none"),
        ("libnccl-net-ofi.so", {"BIREME_ACCELERATORS": ""}, None),
        ("libnccl-net-other.so", {"BIREME_EFA": ""}, None),
    ],
)
def test_nccl_takes_the_plugin_that_the_image_has_unless_somebody_names_one(
    container: Container, library: str, given: dict[str, str], taken: str | None
) -> None:
    said: list[str] = []
    container.without(f"lib/{PLUGIN}")
    container.file(f"lib/{library}")
    env = devices.for_processes({**container.env, **given}, said.append, container.root)
    assert env.get("NCCL_NET_PLUGIN") == taken
    assert len(said) == (taken is not None and not given)


def test_a_worker_without_efa_is_told_of_no_plugin(container: Container) -> None:
    container.without("dev/infiniband/uverbs0")
    env = {**container.env, "BIREME_EFA": ""}
    assert devices.for_processes(env, print, container.root) == env


def test_efa_needs_memory_that_a_process_may_lock(container: Container) -> None:
    container.limits("8388608")
    lack = container.lack()
    assert lack is not None
    assert str(lack).startswith("a process may lock 8192 KiB of memory")
    assert lack.code == TEMPORARY
    container.limits("8388608", rights=1 << 14)
    assert container.lack() is None, "CAP_IPC_LOCK knows no limit"
    container.limits("68719476736")
    assert container.lack() is None


def test_efa_that_was_not_asked_for_is_not_looked_for(container: Container) -> None:
    said: list[str] = []
    container.without("dev/infiniband/uverbs0")
    devices.check_efa({**container.env, "BIREME_EFA": ""}, said.append, container.root)
    assert said == []


def test_efa_all_fails_and_efa_of_the_type_is_a_sentence_in_the_log(container: Container) -> None:
    said: list[str] = []
    container.without(f"lib/{PLUGIN}")
    with pytest.raises(Stop, match="EFA cannot be used: the image has no libnccl") as refusal:
        devices.check_efa(container.env, said.append, container.root)
    assert refusal.value.code == CONFIG
    assert said == []
    devices.check_efa({**container.env, "BIREME_EFA": "wanted"}, said.append, container.root)
    (sentence,) = said
    assert sentence.startswith("EFA cannot be used, so that NCCL takes TCP: the image has no")


def run(module: str, env: Mapping[str, str], tmp_path: Path) -> tuple[int, str, str]:
    """The exit code of a supervisor on this machine, which has no EFA, its log and its last words."""
    words = tmp_path / "termination-log"
    words.touch()
    environ = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(RUNTIME), "BIREME_TERMINATION_LOG": str(words), **env
    }  # fmt: skip
    command = [sys.executable, "-m", *module.split(), "--", "true"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr, words.read_text()


@pytest.mark.parametrize(
    ("module", "env"),
    [
        ("bireme_runtime.elastic.agent.supervisor", {}),
        ("bireme_runtime.mpi.supervisor", {"BIREME_MPI_ROLE": "worker"}),
        ("bireme_runtime.paddle.supervisor trainer", {}),
        ("bireme_runtime.process.devices", {}),
    ],
)
def test_a_worker_without_the_efa_it_needs_ends_with_one_sentence_in_log_and_status(
    tmp_path: Path, module: str, env: dict[str, str]
) -> None:
    code, log, words = run(module, {"BIREME_EFA": "required", **env}, tmp_path)
    assert code in (CONFIG, TEMPORARY)
    (line,) = log.splitlines()
    assert "EFA cannot be used: " in line
    assert line.endswith(words)
    assert words


def test_an_init_container_without_the_efa_it_wants_ends_well_and_says_so_in_status(
    tmp_path: Path,
) -> None:
    code, log, words = run("bireme_runtime.process.devices", {"BIREME_EFA": "wanted"}, tmp_path)
    assert code == 0
    assert words.startswith("EFA cannot be used, so that NCCL takes TCP: ")
    assert log == f"bireme devices: {words}\n"


@pytest.mark.parametrize(
    ("architectures", "capability", "fits"),
    [
        ("sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90", "10.0", False),
        ("sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", "10.0", True),
        ("sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", "10.3", True),
        ("sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", "8.9", True),
        ("sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", "7.0", False),
        ("sm_90 compute_90", "10.0", True),
        ("sm_90a", "9.0", True),
        ("sm_100a", "10.3", False),
        ("sm_90", "[N/A]", True),
    ],
)
def test_kernels_fit_their_major_version_and_ptx_all_later_ones(
    architectures: str, capability: str, fits: bool
) -> None:
    assert devices.has_kernels(architectures.split(), capability) is fits


def test_a_torch_without_kernels_for_the_gpu_is_refused_in_all_workers(container: Container) -> None:
    container.program("nvidia-smi", "echo 'NVIDIA B200, 10.0'; echo 'NVIDIA B200, 10.0'")
    found = devices.gpu_capabilities(container.env)
    assert found == {"NVIDIA B200": "10.0"}
    with pytest.raises(Stop, match="NVIDIA B200 has compute capability 10") as refusal:
        launch.check_kernels(["sm_80", "sm_90"], found)
    assert launch.classify(refusal.value) == ("config", 1)
    launch.check_kernels(["sm_80", "sm_90", "sm_100"], found)
    launch.check_kernels([], found)


@pytest.mark.parametrize("does", ["echo no devices; exit 9", "echo nothing"])
def test_without_an_answer_of_nvidia_smi_no_gpu_is_judged(container: Container, does: str) -> None:
    assert devices.gpu_capabilities(container.env) == {}
    container.program("nvidia-smi", does)
    assert devices.gpu_capabilities(container.env) == {}
