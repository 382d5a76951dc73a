"""What `make test` runs of many cases that prove the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def core(*kept: Any, of: Iterable[Any]) -> list[Any]:
    """The cases of ``of`` as parameters of a test: those not in ``kept`` are left to the full tier."""
    cases = list(of)
    assert set(kept) <= set(cases), "what is kept is one of the cases"
    return [case if case in kept else pytest.param(case, marks=pytest.mark.whole) for case in cases]
