"""What holds for the tests of all tiers."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # Who is started in the background ignores Ctrl-C, and so would all that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
