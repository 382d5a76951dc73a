"""Waiting in tests: for a condition, with a limit and a message."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable

import pytest

from bireme.clusters.api import Api, ApiError


def until(
    done: Callable[[], object], seconds: float = 120, what: str | Callable[[], str] = "it", every: float = 0.1
) -> None:
    """Return once ``done()`` is true; fail the test after ``seconds``.

    ``what`` was waited for: a text, or a function that makes it when the test fails, for example from a
    log. ``every``: seconds between two tries.
    """
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            pytest.fail(
                f"gave up waiting for {what if isinstance(what, str) else what()} after {seconds:g} s"
            )
        time.sleep(every)


def until_gone(api: Api, definition: str) -> None:
    """Wait until a deleted definition is gone.

    An API server that has just learnt the kind may delete it only after another write.
    """

    def is_gone() -> bool:
        found = api.find(definition)
        if found and "deletionTimestamp" in found["metadata"]:
            with contextlib.suppress(ApiError):
                api.patch(definition, {"metadata": {"annotations": {"tests/again": uuid.uuid4().hex}}})
        return found is None

    until(is_gone, what=f"{definition} to be gone", every=1)


def until_account(api: Api, namespace: str) -> None:
    """Return once a new namespace has the ServiceAccount without which the API server refuses its pods."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    until(lambda: api.find(path) is not None, what=path)
