"""Check that all replicas of a Service are healthy, and one leads: check.py HOST METRICS_PORT (0: none)."""

import socket
import sys
import time
import urllib.request

SECONDS = 60  # the lease of a leader that was killed expires after 15


def get(address, port, path):
    host = f"[{address}]" if ":" in address else address
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as response:
        return response.read().decode()


def problem(host, metrics_port):
    """What is wrong; empty if nothing is."""
    try:
        operators = sorted({found[4][0] for found in socket.getaddrinfo(host, None)})
        for address in operators:
            get(address, 8080, "/healthz")
        if metrics_port:
            pages = [get(address, metrics_port, "/metrics").splitlines() for address in operators]
            leaders = sum("mpi_operator_is_leader 1" in page for page in pages)
            if leaders != 1:
                return f"{leaders} of {len(operators)} operators lead, one must: see their logs"
    except OSError as error:
        return f"the operators of {host} do not all answer: {error}"
    return ""


def main(host, metrics_port):
    deadline = time.monotonic() + SECONDS
    while (found := problem(host, metrics_port)) and time.monotonic() < deadline:
        time.sleep(1)
    sys.exit(f"error: {found}" if found else 0)


main(sys.argv[1], int(sys.argv[2]))
