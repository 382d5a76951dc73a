"""Repositories that the pods of a job clone, and the commit that they train."""

from __future__ import annotations

import os
import re
import subprocess

from bireme.core.errors import BiremeError
from bireme.helm.yaml import Values


def cloned(given: str) -> Values:
    """The values with which a job clones and runs git+URL@REF. Raises BiremeError for what has another form,
    and for a branch or tag that the repository does not have.
    """
    found = re.fullmatch(r"git\+(https?://[^/@\s]+/[^@\s]+)(?:@([\w./-]+))?", given)
    if not found:
        raise BiremeError(
            f"--script {given}: it is git+https://HOST/PATH@REF, without a name or a password; a Secret has "
            "those (launch.git.existingSecret)"
        )
    url, ref = found[1], found[2] or ""
    return {"script": "", "launch": {"files": {}, "git": {"url": url, "ref": _commit(url, ref)}}}


def _commit(url: str, ref: str) -> str:
    """The commit at which ``ref`` is now, or ``ref`` where this machine may not ask."""
    if re.fullmatch("[0-9a-f]{40}", ref):
        return ref
    command = ["git", "ls-remote", "--", url, ref or "HEAD", f"{ref}^{{}}"]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ref
    if done.returncode:
        return ref
    there = {name: commit for commit, name in (line.split("\t") for line in done.stdout.splitlines())}
    for name in (f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", ref or "HEAD"):
        if name in there:
            return there[name]
    raise BiremeError(f"--script: {url} has no branch or tag {ref}; a commit has all of its 40 digits")
