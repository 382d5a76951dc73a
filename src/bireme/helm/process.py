"""Many renders in one process of Helm's library, which spares each the start of a process."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

from bireme.helm.yaml import as_json

_Answer = Future[dict[str, Any]]


class NoAnswer(Exception):
    """The process has ended, as after a signal, or there is no room for the values that it reads."""


class RenderProcess:
    """A running helm-render of hack/tools. Threads may share it. It ends with the last reference to it."""

    def __init__(self, binary: Path, environment: Mapping[str, str]) -> None:
        process = subprocess.Popen(
            [binary],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            encoding="utf-8",
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._questions = process.stdin
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, _Answer] = {}
        self._reader = threading.Thread(
            target=_read, args=(process.stdout, self._waiting, self._lock), daemon=True
        )
        self._reader.start()
        weakref.finalize(self, _end, process)

    def text(self, values: Mapping[str, Any], **asked: Any) -> tuple[str, str]:
        """Helm's output, and its error or "". Raises NoAnswer."""
        answer: _Answer = Future()
        try:
            with tempfile.NamedTemporaryFile(
                "w", suffix=".json", encoding="utf-8", errors="backslashreplace"
            ) as file:
                file.write(as_json(values))
                file.flush()
                self._ask({"id": next(self._numbers), "file": file.name, **asked}, answer)
                made = answer.result()
        except OSError:
            raise NoAnswer from None
        return made["text"], made.get("error", "")

    def _ask(self, question: dict[str, Any], answer: _Answer) -> None:
        with self._lock:
            if not self._reader.is_alive():
                raise NoAnswer
            self._waiting[question["id"]] = answer
            self._questions.write(json.dumps(question) + "\n")
            self._questions.flush()


def _read(answers: IO[str], waiting: dict[int, _Answer], lock: threading.Lock) -> None:
    # The last line of a process that was killed may lack its end.
    with contextlib.suppress(ValueError):
        for line in answers:
            made = json.loads(line)
            with lock:
                answer = waiting.pop(made["id"])
            answer.set_result(made)
    with lock:
        for answer in waiting.values():
            answer.set_exception(NoAnswer())
        waiting.clear()


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with process, contextlib.suppress(BrokenPipeError):
        process.stdin.close()
