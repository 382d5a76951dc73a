"""The world of an MPI job: its hosts and slots, in the form that each implementation of MPI reads."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bireme_runtime.process import environment
from bireme_runtime.process.environment import setting
from bireme_runtime.process.errors import CONFIG, Stop

# Each rank of the probe prints its host and the size of its world; before that, the first one of each host
# ends ranks that an earlier launcher left there.
PROBE = (
    "sh",
    "-c",
    '[ "${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}" != 0 ] ||'
    " python3 -m bireme_runtime.mpi.earlier\n"
    'echo "bireme-rank $(uname -n) ${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-0}}"',
)
_ANSWER = re.compile(r"bireme-rank (\S+) (\d+)")
_HYDRA = ("Intel", "MPICH")
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class MpiWorld:
    """``slots`` ranks on each of ``hosts``; ``arguments`` are the user's own for mpirun.

    ``least`` is the number of hosts that an elastic job needs at any time; 0 means all of them.
    """

    hosts: tuple[str, ...]
    slots: int = setting("BIREME_MPI_SLOTS")
    implementation: str = setting("BIREME_MPI_IMPLEMENTATION", "OpenMPI")
    arguments: tuple[str, ...] = ()
    least: int = setting("BIREME_MPI_LEAST", 0)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> MpiWorld:
        """Read the world from the chart's variables. Raises Stop when one cannot be used."""
        pattern = environment.required(env, "BIREME_MPI_HOSTS")
        workers = environment.integer(env, "BIREME_MPI_WORKERS")
        try:
            arguments = tuple(map(str, json.loads(env.get("BIREME_MPI_ARGUMENTS", "[]"))))
        except ValueError as error:
            raise Stop(CONFIG, f"BIREME_MPI_ARGUMENTS is not a JSON list: {error}") from error
        hosts = tuple(pattern.replace("{}", str(index)) for index in range(workers))
        return environment.read(cls, env, hosts=hosts, arguments=arguments)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.hosts) * self.slots

    @property
    def names(self) -> tuple[str, ...]:
        """The short names of the hosts, as `uname -n` prints them."""
        return tuple(host.partition(".")[0] for host in self.hosts)

    def hostfile(self) -> str:
        """The content of the host file."""
        form = "{}:{}" if self.implementation in _HYDRA else "{} slots={}"
        return "".join(f"{form.format(host, self.slots)}\n" for host in self.hosts)

    def mpirun(self, program: Sequence[str], env: Mapping[str, str]) -> list[str]:
        """The command line that runs ``program`` on all ranks. Raises Stop if there is no mpirun."""
        binary = shutil.which("mpirun", path=env.get("PATH"))
        if not binary:
            raise Stop(CONFIG, "the image has no mpirun on its PATH: install MPI in it, or set env.PATH")
        hosts = "-f" if self.implementation in _HYDRA else "--hostfile"
        return [binary, "-np", str(self.size), hosts, env["BIREME_HOSTFILE"], *self.arguments, *program]

    def environment(
        self, ssh_options: Sequence[str], folder: Path, env: Mapping[str, str], interface: str = ""
    ) -> dict[str, str]:
        """The variables that mpirun of each implementation reads; writes the host file in ``folder``.

        Open MPI 5 reads only the PRTE names and Open MPI 4 only the OMPI names (mpi-operator issue 842).
        Workers of Intel MPI reach the launcher by its address on ``interface``, because its short name does
        not resolve. The user's own settings in ``env`` override `_preferred`.
        """
        hostfile, ssh = folder / "hostfile", " ".join(ssh_options)
        hostfile.write_text(self.hostfile())
        fixed = {
            "BIREME_HOSTFILE": hostfile,
            "OMPI_MCA_orte_default_hostfile": hostfile,
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_plm_rsh_args": ssh,
            "PRTE_MCA_prte_default_hostfile": hostfile,
            "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
            "PRTE_MCA_plm_ssh_args": ssh,
            "HYDRA_HOST_FILE": hostfile,
            "HYDRA_LAUNCHER": "ssh",
            # MPICH 4 reads the first and MPICH 3 the second.
            "HYDRA_LAUNCHER_EXTRA_ARGS": ssh,
            "HYDRA_LAUNCH_EXTRA_ARGS": ssh,
            "I_MPI_HYDRA_HOST_FILE": hostfile,
            "I_MPI_HYDRA_BOOTSTRAP": "ssh",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": ssh,
            "I_MPI_PERHOST": self.slots,
            # For pdsh, by which DeepSpeed starts its ranks.
            "PDSH_RCMD_TYPE": "ssh",
            "PDSH_SSH_ARGS_APPEND": ssh,
        }
        preferred = {name: value for name, value in _preferred(interface).items() if name not in env}
        return {name: str(value) for name, value in {**preferred, **fixed}.items()}

    def judge(self, output: str) -> None:
        """Raise Stop unless the ``output`` of PROBE contains every slot of every host, in one world."""
        answers = _ANSWER.findall(output)
        found = Counter(host.partition(".")[0] for host, _ in answers)
        sizes = {int(size) for _, size in answers}
        if found == Counter(dict.fromkeys(self.names, self.slots)) and sizes == {self.size}:
            return
        there = ", ".join(f"{count} on {name}" for name, count in sorted(found.items())) or "none"
        worlds = " and ".join(map(str, sorted(sizes))) or "0"
        raise Stop(
            CONFIG,
            f"mpirun would start these ranks: {there}, in a world of {worlds}; the job has {self.size} in "
            f"{len(self.hosts)} workers × {self.slots} slots. Look for a setting of MPI (mpi.mpirunArgs, "
            "env, or a file of the image) that names other hosts or numbers",
        )


def interface_of(address: str) -> str:
    """The network interface that has this IPv4 address, or an empty string."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asker, _SIOCGIFADDR, name.encode().ljust(40, b"\0"))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def _preferred(interface: str) -> dict[str, str]:
    """Settings for containers, of Open MPI 4 (OMPI), Open MPI 5 (PRTE) and MPICH (MPIR)."""
    wanted = {
        # Do not bind ranks to cores: a container may use only some of the node's, and data loaders use all of
        # them.
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        # Fill one host after another with ranks.
        "OMPI_MCA_rmaps_base_mapping_policy": "slot",
        "PRTE_MCA_rmaps_default_mapping_policy": "slot",
        # Without this, MPICH reads the memory of other processes and fails where pods may not.
        "MPIR_CVAR_CH4_CMA_ENABLE": "0",
    }
    if interface:
        wanted["I_MPI_HYDRA_IFACE"] = interface
    # Detect a lost host within half a minute rather than after eight minutes.
    for name, value in {"time": "10", "intvl": "5", "probes": "4"}.items():
        wanted[f"OMPI_MCA_oob_tcp_keepalive_{name}"] = value
        wanted[f"PRTE_MCA_oob_tcp_keepalive_{name}"] = value
    if os.geteuid() == 0:
        for name in ("OMPI", "PRTE"):
            wanted[f"{name}_ALLOW_RUN_AS_ROOT"] = "1"
            wanted[f"{name}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return wanted
