"""The command of containers that handle datasets: `python3 -m bireme_runtime.dataset …` (see staging.py)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bireme_runtime.dataset.staging import (
    Corrupt,
    Say,
    Settings,
    Unwritable,
    publish,
    settings_from,
    stage,
    upload,
    verify,
)
from bireme_runtime.process.exits import CONFIG, NO_PERMISSION, TEMPORARY, USAGE
from bireme_runtime.sources.aws import CredentialsError
from bireme_runtime.sources.source import ATTEMPTS, SourceError, Unreachable


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Do what the first argument says; 75 asks for another attempt, 77 and 78 say that none would help."""

    def say(words: str) -> None:
        print(words, flush=True)

    verb = argv[0] if argv else ""
    if verb not in ("stage", "publish", "copy", "verify") or (verb == "verify") != (len(argv) > 1):
        say("usage: python3 -m bireme_runtime.dataset stage | publish | copy | verify FOLDER… [--quick]")
        return USAGE
    try:
        if verb == "verify":
            for folder in (word for word in argv[1:] if word != "--quick"):
                say(verify(Path(folder), "--quick" in argv))
        if verb in ("stage", "copy"):
            stage(settings_from(env), env, say)
        if verb in ("publish", "copy"):
            _publish(settings_from(env), env, say)
    except Unreachable as error:
        say(f"{error}: tried {ATTEMPTS} times; the next attempt goes on from here")
        return TEMPORARY
    except CredentialsError as error:
        say(str(error))
        return NO_PERMISSION
    except (SourceError, Corrupt, Unwritable) as error:
        say(str(error))
        return CONFIG
    return 0


def _publish(settings: Settings, env: Mapping[str, str], say: Say) -> None:
    publish(settings, say)
    if settings.upload and settings.index == 0:
        upload(settings, env, say)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
