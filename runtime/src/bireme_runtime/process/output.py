"""What the processes of a worker print: passed on unchanged, and read line by line on the way."""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time
from collections.abc import Callable, Iterator

from bireme_runtime.process.log import log_of
from bireme_runtime.process.waiting import readable

_LONGEST_LINE = 65536
_ENDS = re.compile(rb"[\r\n]")

Take = Callable[[bytes], None]


class Copier:
    """Two pipes for the standard output and error of processes. A thread copies them to this process's own.

    ``take`` gets each line, without its end, in that thread. Its first failure is told, and copying goes on:
    without this thread every process would block in its next print.
    """

    def __init__(self, take: Take) -> None:
        self._take = take
        self._failed = False
        self._lock = threading.Lock()
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        self.writers, self._targets = (its_out, its_err), {out: 1, err: 2}
        self._parts = {out: b"", err: b""}
        self._thread = threading.Thread(target=self._copy, name="bireme-output", daemon=True)

    def start(self) -> None:
        """Begin to copy. The thread gets the signal mask of the one that calls."""
        self._thread.start()

    @contextlib.contextmanager
    def drained(self, seconds: float) -> Iterator[None]:
        """Wait until everything that has been printed so far is read, at most so long.

        While the block runs, nothing more is read.
        """
        deadline = time.monotonic() + seconds
        with contextlib.ExitStack() as held:
            # The thread keeps the lock while nobody reads the log.
            while self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                if time.monotonic() >= deadline or not any(map(readable, self._targets)):
                    held.callback(self._lock.release)
                    break
                self._lock.release()
                time.sleep(0.005)
            yield

    def close(self, seconds: float) -> None:
        """Copy what is left, after all processes have ended; those that have not are waited for so long."""
        for writer in self.writers:
            with contextlib.suppress(OSError):
                os.close(writer)
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _copy(self) -> None:
        readers = set(self._targets)
        poll = select.poll()
        for reader in readers:
            poll.register(reader, select.POLLIN)
        while readers:
            for reader, _ in poll.poll():
                with self._lock:
                    chunk = os.read(reader, _LONGEST_LINE)
                    self._pass_on(reader, chunk)
                if not chunk:
                    poll.unregister(reader)
                    readers.discard(reader)

    def _pass_on(self, reader: int, chunk: bytes) -> None:
        rest = chunk
        # Whoever reads the log may have gone; the training goes on without a log.
        with contextlib.suppress(OSError):
            while rest:
                rest = rest[os.write(self._targets[reader], rest) :]
        *lines, part = _ENDS.split(self._parts[reader] + chunk)
        self._parts[reader] = part[-_LONGEST_LINE:]
        for line in filter(None, lines):
            try:
                self._take(line)
            except Exception as error:
                if not self._failed:
                    log_of("output")(f"reading the output failed: {error!r}; it is still passed on")
                self._failed = True
