"""The command `python3 -m bireme_runtime.dataset stage | publish | copy | hold | verify` (see staging.py).

`copy` is `stage` and then `publish`. `hold` lets no other pod copy this dataset until it is told to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bireme_runtime.dataset import staging
from bireme_runtime.process.errors import BiremeError, Unreachable
from bireme_runtime.process.exits import CONFIG, NO_PERMISSION, TEMPORARY, USAGE
from bireme_runtime.process.http import reason
from bireme_runtime.process.log import Say, log_of
from bireme_runtime.sources.aws import CredentialsError
from bireme_runtime.sources.source import ATTEMPTS, Changed


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Carry out the command; returns the exit code.

    75 asks for another attempt; after 77 and 78 none helps.
    """
    say = log_of("dataset")
    verb = argv[0] if argv else ""
    has_arguments = verb in ("verify", "hold")
    if verb not in ("stage", "publish", "copy", "hold", "verify") or has_arguments != (len(argv) > 1):
        verbs = "stage | publish | copy | hold FILE | verify PATH… [--quick]"
        say(f"usage: python3 -m bireme_runtime.dataset {verbs}")
        return USAGE
    try:
        if verb == "verify":
            for path in (each for each in argv[1:] if each != "--quick"):
                say(staging.verify(Path(path), "--quick" in argv))
        elif verb == "hold":
            _hold(staging.settings_from(env), Path(argv[1]), say)
        else:
            settings = staging.settings_from(env)
            with contextlib.nullcontext() if settings.is_held else staging.alone(settings, say):
                if verb in ("stage", "copy"):
                    staging.stage(settings, env, say)
                if verb in ("publish", "copy"):
                    _publish(settings, env, say)
    except Unreachable as error:
        say(f"{error}: tried {ATTEMPTS} times; the next attempt continues from here")
        return TEMPORARY
    except Changed as error:
        say(f"{error}; the next attempt lists the source again")
        return TEMPORARY
    except OSError as error:
        # Of the node or of the moment, such as a full disk: a training pod on another node may do better.
        say(f"{error.filename or 'a file'} cannot be used: {reason(error)}")
        return TEMPORARY
    except BiremeError as error:
        say(str(error))
        return {CredentialsError: NO_PERMISSION, staging.Unwritable: TEMPORARY}.get(type(error), CONFIG)
    return 0


def _publish(settings: staging.StagingSettings, env: Mapping[str, str], say: Say) -> None:
    staging.publish(settings, say)
    if settings.upload and settings.index == 0:
        staging.upload(settings, env, say)


def _hold(settings: staging.StagingSettings, has_lock: Path, say: Say) -> None:
    """Lock the dataset, make the file `has_lock`, and keep the lock until SIGTERM."""

    def end(*_: object) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    # It is still there when this container starts again.
    has_lock.unlink(missing_ok=True)
    with staging.alone(settings, say):
        has_lock.touch()
        while True:
            signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
