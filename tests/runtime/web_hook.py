"""A web hook on this machine, and what a pod knows of it."""

from __future__ import annotations

import json
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.api_server import Quiet

RUN = {"namespace": "ml", "release": "night", "run": 2}


class WebHook:
    """It keeps the messages that it gets, and answers with ``status``; with 0 it never answers."""

    def __init__(self, folder: Path, status: int = 200) -> None:
        self.messages: list[dict[str, Any]] = []
        hook, self._over = self, threading.Event()

        class Handler(Quiet):
            def do_POST(self) -> None:
                hook.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if status:
                    self.answer(b"ok", status)
                else:
                    hook._over.wait(60)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.secret = f"T0-{folder.name}"
        self.url = folder / "url"
        self.url.write_text(f"http://127.0.0.1:{self._server.server_port}/{self.secret}\n")

    def environment(self, failed: int = 0, format: str = "json", **more: Any) -> dict[str, str]:
        """The variables of a pod of which so many starts have failed."""
        about = {"format": format, "file": str(self.url), "run": RUN, "ends": [0, 64, 70, 78], **more}
        return {"BIREME_WEBHOOK": json.dumps(about), "BIREME_FAILED_STARTS": str(failed)}

    def stop(self) -> None:
        """Serve no more."""
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
