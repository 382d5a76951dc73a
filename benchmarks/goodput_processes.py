"""Where benchmarks/goodput.py trains without Kubernetes: "pods" are namespaces on one machine.

Each has a network address, a host name, processes and a /dev/shm of its own, over the root file system of the
torch image. A pod that has ended is started again after two seconds where it was deleted, and otherwise after
ten, which is what a Job waits first. Bireme's workers have the environment that its chart gives them. Needs
root, and BIREME_TORCH_ROOT.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from goodput_systems import AT, WORKERS, Pods, System

from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.testing import charts
from bireme.tools import Toolbox
from tests.kind.shell import NODE_TYPE
from tests.kind.training import KIND
from tests.runtime.etcd_servers import RUNTIME, EtcdServer

sys.path.append(str(Path(__file__).resolve().parents[1] / "hack/images"))

from rootfs import enter

_HUB, _NET = "goodput0", "198.19.0"
_GRACE_SECONDS, _POWER_SECONDS = 30, 60
_DELETED, _ENDED = 2.0, 10.0


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class OnProcesses:
    """One bridge on this machine, and an etcd for each job of Bireme."""

    def __init__(self, paths: Paths, toolbox: Toolbox) -> None:
        self._paths, self._toolbox = paths, toolbox
        self.runs = paths.state / "runs"
        self._jobs = 0

    def prepare(self, stack: ExitStack, systems: Sequence[System]) -> None:
        """Make the folder of the claim and the bridge, which go when the stack ends."""
        self.runs.mkdir(parents=True)
        # In a network of its own, where no rules of the container engine hold.
        _ip("netns", "add", _HUB)
        stack.callback(_ip, "netns", "delete", _HUB)
        _ip("-n", _HUB, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", _HUB, "link", "set", "bridge0", "up")
        _ip("link", "add", _HUB, "type", "veth", "peer", "name", "host0", "netns", _HUB)
        _ip("-n", _HUB, "link", "set", "host0", "master", "bridge0", "up")
        _ip("address", "add", f"{_NET}.1/24", "dev", _HUB)
        _ip("link", "set", _HUB, "up")

    @contextmanager
    def job(self, system: System, name: str) -> Iterator[Pods]:
        """A job whose pods are started again until the block ends."""
        self._jobs = self._jobs % 20 + 1
        with ExitStack() as stack:
            etcd = None
            if system.values:
                etcd = EtcdServer(
                    self._toolbox.path("etcd"), self.runs / name / "etcd", host=f"{_NET}.1"
                ).start()
                stack.callback(etcd.stop)
            pods = _Job(self, system, name, 10 * self._jobs, etcd, self._environment(system, name))
            stack.callback(pods.end)
            pods.begin()
            yield pods

    def _environment(self, system: System, name: str) -> dict[str, str]:
        """What a container of the worker has in the chart, or in an Indexed Job."""
        image = {"USE_LIBUV": "0", "OMP_NUM_THREADS": "1"}
        if not system.values:
            return {**image, **system.environment()}
        request = charts.request_for(
            self._paths, self._paths.root, "torch-elastic", release=name, namespace="default",
            instance=NODE_TYPE, files=[KIND], values=system.chart_values(name),
        )  # fmt: skip
        job = Renderer(self._toolbox, self._paths).render(request).object(f"Job/{name}-r1")
        (container,) = job["spec"]["template"]["spec"]["containers"]
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        return {**image, **given, "PYTHONPATH": "/srv", "BIREME_WORKERS_FILE": f"{AT}/{name}/workers"}


class _Job:
    """The pods of one job: workers and spares by their number, and the master after them."""

    def __init__(
        self, stage: OnProcesses, system: System, name: str, base: int, etcd: EtcdServer | None,
        environment: dict[str, str],
    ) -> None:  # fmt: skip
        self._stage, self._system, self._name, self._base = stage, system, name, base
        self._etcd, self._environment = etcd, environment
        self._folder: Path = stage.runs / name
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._start_in = [_ENDED] * (system.pods + 1)
        self._over = threading.Event()
        self._keepers: list[threading.Thread] = []

    def begin(self) -> None:
        """Make the networks of the pods, and start them."""
        (self._folder / "workers").write_text(str(WORKERS))
        names = [(self._address(number), self._host(number)) for number in range(self._system.pods + 1)]
        hosts = "127.0.0.1 localhost\n" + "".join(f"{address} {host}\n" for address, host in names)
        (self._folder / "hosts").write_text(hosts)
        for number in range(self._system.pods + bool(self._system.master)):
            net, link = self._host(number), f"{self._name}{number}"
            _ip("netns", "add", net)
            _ip("-n", _HUB, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", net)
            _ip("-n", _HUB, "link", "set", link, "master", "bridge0", "up")
            _ip("-n", net, "address", "add", f"{self._address(number)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", net, "link", "set", device, "up")
            self._keepers.append(threading.Thread(target=self._keep, args=(number,)))
            self._keepers[-1].start()

    def end(self) -> None:
        """Kill all pods, and remove their networks."""
        self._over.set()
        for pod in list(self._running.values()):
            pod.kill()
        for keeper in self._keepers:
            keeper.join()
        for number in range(len(self._keepers)):
            _ip("netns", "delete", self._host(number))

    def address(self, worker: int) -> str:
        return self._address(worker) if worker in self._running else ""

    def send(self, signal: str, worker: int, pid: int) -> None:
        if first := self._first(worker):
            inside = ["nsenter", "--target", str(first), "--pid", "kill", f"-{signal}", str(pid)]
            subprocess.run(inside, check=False, capture_output=True)

    def delete(self, worker: int) -> None:
        pod, first = self._running.get(worker), self._first(worker)
        if pod and first:
            self._start_in[worker] = _DELETED
            os.kill(first, 15)
            threading.Timer(_GRACE_SECONDS, pod.kill).start()

    def power_off(self, worker: int) -> None:
        if pod := self._running.get(worker):
            self._start_in[worker] = _POWER_SECONDS
            link = ("-n", _HUB, "link", "set", f"{self._name}{worker}")
            # First the network, so that no connection is closed.
            _ip(*link, "down")
            pod.kill()
            threading.Timer(_POWER_SECONDS, _ip, [*link, "up"]).start()

    def etcd_away(self) -> None:
        if self._etcd:
            self._etcd.stop()
            time.sleep(_DELETED)
            self._etcd.folder = self._etcd.folder.with_name(f"etcd-{time.time_ns()}")
            self._etcd.start(wait=False)

    def words(self) -> str:
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(log.read_text(errors="replace")[-1500:] for log in logs)

    def _keep(self, number: int) -> None:
        while not self._over.is_set():
            with (self._folder / f"{number}.log").open("ab") as log:
                pod = self._running[number] = subprocess.Popen(
                    self._command(number), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
                pod.wait()
            del self._running[number]
            self._over.wait(self._start_in[number])
            self._start_in[number] = _ENDED

    def _command(self, number: int) -> list[str]:
        system, host = self._system, self._host(number)
        root = Path(os.environ["BIREME_TORCH_ROOT"]).resolve()
        environment = {**self._environment, "JOB_COMPLETION_INDEX": str(number), "HOSTNAME": host}
        if self._etcd:
            environment |= {"PET_RDZV_ENDPOINT": self._etcd.endpoint, "PET_RDZV_ID": self._name}
            environment |= {"PET_LOCAL_ADDR": self._address(number), "BIREME_NODE": f"node-{number}"}
            supervisor = ["python3", "-m", "bireme_runtime.elastic.agent.supervisor", "--"]
            command = [*supervisor, *system.arguments(self._name)]
        else:
            words = system.master if number == system.pods else system.command
            command = ["sh", "-c", system.shell(words, self._name, self._host(0), self._host(system.pods))]
        inside = enter(root, command, {RUNTIME: "/srv", self._stage.runs: AT}, environment)
        outside = 'hostname "$0" && mount --bind "$1" "$2" && shift 2 && exec "$@"'
        own = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", outside]
        hosts = [str(self._folder / "hosts"), f"{root}/etc/hosts"]
        return ["ip", "netns", "exec", host, *own, host, *hosts, *inside]

    def _first(self, worker: int) -> int | None:
        """The first process of a pod, as this machine numbers it."""
        with suppress(KeyError, OSError, ValueError):
            pid = self._running[worker].pid
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return None

    def _address(self, number: int) -> str:
        return f"{_NET}.{self._base + number}"

    def _host(self, number: int) -> str:
        return f"{self._name}-{'master' if number == self._system.pods else number}"
