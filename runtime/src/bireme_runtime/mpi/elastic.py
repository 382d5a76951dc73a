"""Elastic Horovod: horovodrun, which trains on the workers that answer, however many they are.

horovodrun asks for the hosts every second, by a command that prints them. The launcher keeps a connection
to each worker and writes a file for it, so that asking costs no worker a login, and a broken connection tells
at once that a worker is lost.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bireme_runtime.mpi.ssh import Ssh
from bireme_runtime.mpi.workers import Workers
from bireme_runtime.mpi.world import MpiWorld
from bireme_runtime.process.disk import write_whole
from bireme_runtime.process.errors import CONFIG, Stop

NO_HOROVODRUN = "the image has no horovodrun on its PATH: install Horovod in it, built with Gloo"
# Looking for a worker that is not there asks the cluster's DNS several times.
_SEARCH_SECONDS = 3.0
# horovodrun looks at the list every second.
_UNLISTED_SECONDS = 5.0
# For these seconds, twice as long each time, horovodrun leaves out a host whose ranks failed. Otherwise that
# would be for good, and a new pod has the host name of the one that it replaces.
_SHORTEST_PAUSE, _LONGEST_PAUSE = "2", "60"
# Ranks get the environment of their own pod; horovodrun gives all of them that of the launcher's.
_IN_POD = ("sh", "-c", '. "$0" && exec "$@"')


@dataclass
class Discovery:
    """The file of `HOST:SLOTS` lines that horovodrun's host discovery prints."""

    workers: Workers
    slots: int
    file: Path
    idle_seconds: float = 60.0
    _searched: float = 0.0
    _listed: list[str] = field(default_factory=list)
    _idle_since: dict[str, float] = field(default_factory=dict)

    def refresh(self, commands: str | None = None) -> tuple[list[str], list[str]]:
        """List those workers that answer; returns those that went, and those that came.

        ``commands``: the command lines of horovodrun's processes, of which each remote rank has an ssh.
        """
        went = self.workers.drop_lost()
        came: list[str] = []
        if time.monotonic() >= self._searched + _SEARCH_SECONDS:
            came = self.workers.greet_missing()
            self._searched = time.monotonic()
        forgotten = self._forgotten(commands) if commands is not None else set()
        listed = [host for host in self.workers.present if host not in forgotten]
        if listed != self._listed or not self.file.exists():
            self._listed = listed
            write_whole(self.file, "".join(f"{host}:{self.slots}\n" for host in listed))
        return went, came

    def _forgotten(self, commands: str) -> set[str]:
        """Workers without ranks for so long, to be left out for a moment: horovodrun has forgotten them.

        It tells ranks of a new host once, and those that are still starting do not hear it.
        """
        now, found = time.monotonic(), set()
        for host in self.workers.present:
            if host in commands or host.partition(".")[0] == os.uname().nodename:
                self._idle_since.pop(host, None)
                continue
            idle = now - self._idle_since.setdefault(host, now)
            if idle >= self.idle_seconds + _UNLISTED_SECONDS:
                self._idle_since[host] = now
            elif idle >= self.idle_seconds:
                found.add(host)
        return found


def horovodrun(
    world: MpiWorld,
    discovery: Discovery,
    ssh: Ssh,
    program: Sequence[str],
    interface: str,
    env: Mapping[str, str],
) -> list[str]:
    """The command line that runs ``program`` on the workers there are. Raises Stop without horovodrun."""
    binary = shutil.which("horovodrun", path=env.get("PATH"))
    if not binary:
        raise Stop(CONFIG, NO_HOROVODRUN)
    least, most = str(world.least * world.slots), str(world.size)
    options = ["-np", least, "--min-np", least, "--max-np", most]
    options += ["--host-discovery-script", shlex.join(["cat", str(discovery.file)])]
    options += ["--blacklist-cooldown-range", _SHORTEST_PAUSE, _LONGEST_PAUSE]
    options += ["--network-interfaces", interface] if interface else []
    return [binary, *options, *_IN_POD, str(ssh.environment), *program]
