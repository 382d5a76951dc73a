"""Many renders in one process of Helm's library: what a process for each would take hours for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import IO

from bireme.core.manifests import Manifest
from bireme.helm import Render, RenderError, RenderRequest
from bireme.helm.output import sentences


class OneProcess:
    """Renders as `Renderer.render_many` does, values and the default Kubernetes version only."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def render_many(self, requests: Sequence[RenderRequest]) -> list[Render | RenderError]:
        """Every request rendered, in order. Objects that several have in common are the same Manifest."""
        with subprocess.Popen([self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            asking = Thread(target=_ask, args=(requests, process.stdin))
            asking.start()
            outcomes = list(_outcomes(requests, process.stdout))
            asking.join()
        return outcomes


def _ask(requests: Sequence[RenderRequest], pipe: IO[bytes]) -> None:
    with pipe:
        for each in requests:
            asked = {
                "chart": str(each.chart),
                "values": each.values,
                "release": each.release,
                "namespace": each.namespace,
            }
            pipe.write(json.dumps(asked).encode() + b"\n")


def _outcomes(requests: Sequence[RenderRequest], pipe: IO[bytes]) -> Iterator[Render | RenderError]:
    known: dict[int, Manifest] = {}
    for request, line in zip(requests, pipe, strict=True):
        answer = json.loads(line)
        for each in answer["objects"]:
            if "content" in each:
                known[each["number"]] = Manifest(each["content"], each["source"])
        if "error" in answer:
            yield RenderError(sentences(answer["error"]), answer["error"])
            continue
        yield Render(request, tuple(known[each["number"]] for each in answer["objects"]))
