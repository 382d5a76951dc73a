"""What processes say at their end: whether they lost a peer, and whether a restart would meet it again."""

from __future__ import annotations

import re

# What processes say that lost another one, or wait for one that hangs. They did not fail by themselves.
_LOST_A_PEER = re.compile(
    "|".join(
        (
            # gloo and torch's stores (gloo/transport/tcp, torch/csrc/distributed/c10d/TCPStore.cpp)
            r"closed by peer|reset by peer|recvValue failed|sendBytes failed|DistNetworkError",
            r"Timed out waiting|failed to pass monitoredBarrier",
            # the kernel's words for a peer that does not answer (errno: EPIPE, ECONNREFUSED, ETIMEDOUT, …)
            r"Broken pipe|Connection refused|Connection timed out|No route to host|Network is unreachable",
            # NCCL (src/misc/socket.cc, src/transport/net_ib) and aws-ofi-nccl (NET/OFI)
            r"remote process exited|ncclRemoteError|communicator was aborted|aborted comm",
            r"socketStartConnect: Connect to|Got completion .{0,200}with (?:error|status)",
            r"NET/OFI .{0,200}error",
            # torch's watchdog (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)
            r"Watchdog caught collective operation timeout|Some NCCL operations have failed or timed out",
            # UCX (src/ucp, src/uct) and libfabric's EFA provider (prov/efa)
            r"Endpoint timeout|Endpoint is not connected|FI_ECONNABORTED|Unresponsive receiver",
        )
    ),
    re.IGNORECASE,
)
# Exceptions that a restart may well not meet again: of the system, other machines, memory and devices.
_MAY_PASS = re.compile(
    r"\b(?:OS|IO|URL|HTTP|SSL|Memory|File|Directory|Permission|Process|Pipe|Client|Dist\w*)[A-Z]\w*|Exit\b|Interrupt"
    r"|(?i:memory|cuda|nccl|gloo|\becc\b|xid|device|connect|time[sd]? ?out|network|socket|peer|addr"
    r"|disk|space|quota|storage|corrupt|unavailable|temporar|retr(?:y|ies)|download)",
)
_AT = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")


def lost_a_peer(words: str) -> bool:
    """Whether a process that said this had lost another one, or waited for one that hangs."""
    return bool(_LOST_A_PEER.search(words))


def bug_of(words: str) -> str:
    """The exception at the end of a traceback, and its line in the script, unless it may pass."""
    last = words.rstrip().rpartition("\n")[2].strip()
    places, name = _AT.findall(words), _EXCEPTION.match(last)
    if not places or not name or _MAY_PASS.search(last) or lost_a_peer(words):
        return ""
    own = [each for each in places if not re.search(r"/(?:site|dist)-packages/|/lib/python3|^<", each[0])]
    file, line = (own or places)[-1]
    return f"{name[0]} at {file.rpartition('/')[2]}:{line}"
