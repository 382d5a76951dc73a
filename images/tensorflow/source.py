"""Unpack a source of GitHub, if it has this sha256.

source.py URL SHA256 FOLDER
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path


def main(url: str, sha256: str, folder: Path) -> None:
    with urllib.request.urlopen(url) as answer:
        archive = answer.read()
    if (found := hashlib.sha256(archive).hexdigest()) != sha256:
        sys.exit(f"error: {url} has the sha256 {found}, not {sha256}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            # All is in one folder, whose name has the commit.
            member.name = member.name.partition("/")[2] or "."
            tar.extract(member, folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
