"""Answers probes: whether the controller still looks at the cluster, or waits its turn."""

from __future__ import annotations

import time

from bireme.autoscale.controller import Controller
from bireme_runtime.process.server import Background, Request, Response

_SILENT_SECONDS = 120


def serve_health(controller: Controller, port: int) -> None:
    """Answer to /healthz at ``port`` until the process ends: 200, or 500 if no pass ended for two minutes."""

    def answer(request: Request) -> Response:
        is_well = time.monotonic() - controller.passed < _SILENT_SECONDS
        return Response(404 if request.path != "/healthz" else 200 if is_well else 500)

    Background(answer, "", port)
