"""Answers probes: whether the controller still looks at the cluster, or waits its turn."""

from __future__ import annotations

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bireme.autoscale.controller import Controller

_SILENT_SECONDS = 120


class _Server(ThreadingHTTPServer):
    # Of both families: Linux takes IPv4 on a socket of IPv6, too.
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET


def serve_health(controller: Controller, port: int) -> None:
    """Answer to /healthz at ``port`` until the process ends: 200, or 500 if no pass ended for two minutes."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 60

        def do_GET(self) -> None:
            is_well = time.monotonic() - controller.passed < _SILENT_SECONDS
            status = 404 if self.path != "/healthz" else 200 if is_well else 500
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Probes are no news."""

    server = _Server(("", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
