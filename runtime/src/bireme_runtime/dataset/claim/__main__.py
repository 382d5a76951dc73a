"""The command `python3 -m bireme_runtime.dataset.claim stage | publish | copy | hold FILE` of charts/dataset.

`stage` copies all objects of the sources into a hidden folder beside the target, in parallel and in parts. It
keeps a journal there, so that a second attempt continues where the first one ended. `publish` splits files
into shards if the settings ask for that, writes the manifest and renames the folder to the target. `copy` is
both. `hold` lets no other pod copy this dataset until it is told to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bireme_runtime.dataset.__main__ import attempt
from bireme_runtime.dataset.claim.archives import unpack_sources
from bireme_runtime.dataset.claim.places import sources_of
from bireme_runtime.dataset.claim.root import Root
from bireme_runtime.dataset.claim.shards import split_all
from bireme_runtime.dataset.claim.upload import upload
from bireme_runtime.dataset.place import Folder, alone
from bireme_runtime.dataset.settings import StagingSettings, settings_from
from bireme_runtime.dataset.staging import publish, stage
from bireme_runtime.process.errors import USAGE, end_on_sigterm
from bireme_runtime.process.log import Say, log_of


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Carry out the command; returns the exit code."""
    say = log_of("dataset")
    verb, *files = argv or [""]
    if verb == "hold" and len(files) == 1:
        return attempt(lambda: _hold(settings_from(env), Path(files[0]), say), say)
    if verb in ("stage", "publish", "copy") and not files:
        return attempt(lambda: _copy(verb, env, say), say)
    say("usage: python3 -m bireme_runtime.dataset.claim stage | publish | copy | hold FILE")
    return USAGE


def _copy(verb: str, env: Mapping[str, str], say: Say) -> None:
    settings = settings_from(env)
    with contextlib.nullcontext() if settings.is_held else alone(settings, say):
        if verb != "publish":
            stage_from(settings, env, say)
        if verb != "stage":
            publish_at(settings, say)
            if settings.upload and settings.index == 0:
                upload(settings, env, say)


def stage_from(settings: StagingSettings, env: Mapping[str, str], say: Say) -> bool:
    """As `stage`, from the sources of the settings."""
    sources, place = sources_of(settings, env), _place(settings, say)
    return stage(settings, sources, place, say, lambda listing: unpack_sources(settings, listing, say))


def publish_at(settings: StagingSettings, say: Say) -> bool:
    """As `publish`, at the target of the settings."""
    return publish(settings, _place(settings, say), say, lambda: split_all(settings, say))


def _place(settings: StagingSettings, say: Say) -> Folder:
    return Root(settings, say) if settings.is_root else Folder(settings, say)


def _hold(settings: StagingSettings, has_lock: Path, say: Say) -> None:
    """Lock the dataset, make the file `has_lock`, and keep the lock until SIGTERM."""

    def end(*_: object) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    # It is still there when this container starts again.
    has_lock.unlink(missing_ok=True)
    with alone(settings, say):
        has_lock.touch()
        while True:
            signal.pause()


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main(sys.argv[1:]))
