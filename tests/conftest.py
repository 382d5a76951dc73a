"""What holds for the tests of all tiers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from rich.console import Console

from bireme.clusters.base import Cluster
from bireme.testing.session_cluster import shown_progress

ShowProgress = Callable[[], AbstractContextManager[Console]]


def pytest_configure() -> None:
    # Who is started in the background ignores Ctrl-C, and so would all that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files that wait for a cluster among those that compute, so that a core has both.

    They are in the first three quarters, as the last tests should be short ones.
    """
    files = dict.fromkeys(item.path for item in items)
    waiting = [path for path in files if path.parent.name == "embedded"]
    computing = [path for path in files if path.parent.name != "embedded"]
    places = {path: at / len(computing) for at, path in enumerate(computing)}
    places |= {path: 0.75 * at / len(waiting) for at, path in enumerate(waiting)}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(scope="session")
def cluster(bireme_cluster: Cluster) -> Cluster:
    """The cluster itself, with all that its provider adds, for fixtures of any scope."""
    return bireme_cluster


@pytest.fixture(scope="session")
def show_progress(pytestconfig: pytest.Config) -> ShowProgress:
    """``with show_progress() as console:`` shows at once what is printed in the block, also when it is piped.

    For fixtures that take minutes: pytest keeps what they print until a test fails.
    """
    return lambda: shown_progress(pytestconfig)
