"""A process of Helm's library that renders many charts, which spares each the start of a process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bireme.helm.yaml import as_json


class NoAnswer(Exception):
    """The process has ended, as after a signal, or there is no room for the values that it reads."""


class RenderProcess:
    """A running helm-render of hack/tools. It ends with the last reference to it."""

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
        self._questions, self._answers = process.stdin, process.stdout
        self._told: list[str] = []
        weakref.finalize(self, _end, process)

    def answer(self, values: Mapping[str, Any], **asked: Any) -> Mapping[str, Any]:
        """Helm's output as text, its error if there is one, and what covers asks for. Raises NoAnswer.

        It is for one thread at a time. After any exception nobody may ask this process again: it may still
        answer.
        """
        try:
            with tempfile.NamedTemporaryFile(
                "w", suffix=".json", encoding="utf-8", errors="backslashreplace"
            ) as file:
                file.write(as_json(values))
                file.flush()
                self._questions.write(json.dumps({"file": file.name, **asked}) + "\n")
                self._questions.flush()
                made = json.loads(self._answers.readline())
        # The last line of a process that was killed may lack its end.
        except (OSError, ValueError):
            raise NoAnswer from None
        made["text"] += "".join(map(self._part, made.pop("parts", ())))
        return dict(made)

    def _part(self, told: Any) -> str:
        """A part of an answer: text, a number and its text, or the number of a text that it has told."""
        if isinstance(told, list):
            self._told.append(told[1])
        return told if isinstance(told, str) else self._told[told[0] if isinstance(told, list) else told]


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with process, contextlib.suppress(BrokenPipeError):
        process.stdin.close()
