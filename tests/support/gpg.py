"""A key of gpg for tests that sign."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path


def make_key(folder: Path) -> Path:
    """Write the key of charts@example.com as files `secret` and `public`; returns ``folder``."""
    # The socket of gpg's agent needs a short path.
    home = tempfile.mkdtemp(prefix="bireme-gpg-", dir="/tmp")
    gpg = ["gpg", "--batch", "--homedir", home, "--passphrase", ""]
    try:
        subprocess.run([*gpg, "--quick-gen-key", "charts@example.com", "rsa2048"], check=True)
        for option, name in (("--export-secret-keys", "secret"), ("--export", "public")):
            subprocess.run([*gpg, "--output", str(folder / name), option], check=True)
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)
        # The agent may still be removing its sockets.
        shutil.rmtree(home, ignore_errors=True)
    return folder
