"""A message to a web hook when a run has ended. It is sent once, and the run does not depend on it."""

from __future__ import annotations

import html
import json
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bireme_runtime.process.errors import UNCOUNTED, as_shell
from bireme_runtime.process.log import log_of

_SECONDS = 5.0

say = log_of("webhook")


def tell(env: Mapping[str, str], code: int, reason: str, is_first: Callable[[], bool]) -> None:
    """Send how the run has ended, if this exit code of the pod ends it. It takes 10 seconds at most.

    ``is_first``: whether no other pod has sent it yet. Nothing is raised.
    """
    about = json.loads(env.get("BIREME_WEBHOOK") or "{}")
    starts = int(env.get("BIREME_FAILED_STARTS") or 0)
    is_last = starts >= about.get("starts", starts + 1) and code not in (UNCOUNTED, as_shell(-signal.SIGTERM))
    if about and (code in about["ends"] or is_last):
        said = reason[:500] or f"exit code {code}"
        thread = threading.Thread(target=_send, args=(about, code, said, is_first), daemon=True)
        thread.start()
        thread.join(2 * _SECONDS)


def _send(about: Mapping[str, Any], code: int, reason: str, is_first: Callable[[], bool]) -> None:
    body = {"outcome": "failed", "exitCode": code, "reason": reason} if code else {"outcome": "succeeded"}
    body |= about["run"]
    if about["format"] == "slack":
        sentence = "Run {run} of {release} in {namespace} has {outcome}".format(**body)
        body = {"text": html.escape(f"{sentence}: {reason}" if code else sentence, quote=False)}
    try:
        if is_first():
            url = Path(about["file"]).read_text().strip()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            urllib.request.urlopen(request, timeout=_SECONDS).close()
            say("how the run has ended is told")
    except urllib.error.HTTPError as error:
        say(f"the web hook answers {error.code}")
    except Exception as error:
        # The words of other errors may have the address, which is a secret.
        say(f"the web hook was not told: {type(getattr(error, 'reason', error)).__name__}")
