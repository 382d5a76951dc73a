"""What has to be on the disk, so that a loss of power does not take it back."""

from __future__ import annotations

import os
from pathlib import Path


def to_disk(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
