"""The command `python3 -m bireme_runtime.dataset copy | verify PATH… [--quick]` of the pods that train.

`copy` copies a folder, as BIREME_DATASET says (see settings.py), so that readers see all of it or nothing.
`verify` compares datasets with their manifests. claim/ has what fills a claim.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bireme_runtime.dataset.manifest import verify
from bireme_runtime.dataset.place import Folder, alone
from bireme_runtime.dataset.settings import settings_from
from bireme_runtime.dataset.staging import publish, stage
from bireme_runtime.process.errors import TEMPORARY, USAGE, BiremeError, Unreachable, end_on_sigterm
from bireme_runtime.process.http import reason
from bireme_runtime.process.log import Say, log_of
from bireme_runtime.sources.source import ATTEMPTS, Changed, FolderSource


def attempt(act: Callable[[], None], say: Say) -> int:
    """Call `act`, and say its error; returns the exit code.

    75 asks for another attempt; after 77 and 78 none helps.
    """
    try:
        act()
    except Unreachable as error:
        say(f"{error}: tried {ATTEMPTS} times; the next attempt continues from here")
        return error.code
    except Changed as error:
        say(f"{error}; the next attempt lists the source again")
        return error.code
    except OSError as error:
        # Of the node or of the moment, such as a full disk: a training pod on another node may do better.
        say(f"{error.filename or 'a file'} cannot be used: {reason(error)}")
        return TEMPORARY
    except BiremeError as error:
        say(str(error))
        return error.code
    return 0


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Carry out the command; returns the exit code."""
    say = log_of("dataset")
    if argv == ["copy"]:
        return attempt(lambda: _copy(env, say), say)
    if argv[:1] == ["verify"] and len(argv) > 1:
        return attempt(lambda: _verify(argv[1:], say), say)
    say("usage: python3 -m bireme_runtime.dataset copy | verify PATH… [--quick]")
    return USAGE


def _copy(env: Mapping[str, str], say: Say) -> None:
    settings = settings_from(env)
    folders = [FolderSource(Path(source["url"].removeprefix("file://"))) for source in settings.sources]
    place = Folder(settings, say)
    with alone(settings, say):
        stage(settings, folders, place, say)
        publish(settings, place, say)


def _verify(arguments: Sequence[str], say: Say) -> None:
    for path in arguments:
        if path != "--quick":
            say(verify(Path(path), "--quick" in arguments))


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main(sys.argv[1:]))
