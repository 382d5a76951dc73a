"""A training that hangs in a collective operation, with real torchrun and gloo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import core

Make = Callable[..., Any]


@pytest.mark.parametrize("warm", core("", of=["", "true"]))
def test_the_rank_that_hangs_is_named_and_all_start_again(job: Make, warm: str) -> None:
    limits = {"BIREME_HANG_SECONDS": "10", "BIREME_FIRST_STEP_SECONDS": "120"}
    run = job(PET_NNODES="3:3", BIREME_WARM_START=warm, **limits)
    (run.folder / "train.py").write_bytes(Path(__file__).with_name("hangs.py").read_bytes())
    for index, name in enumerate("abc"):
        run.start(name, index, BIREME_NODE=f"node-{name}")
    assert [run.end(name, 240) for name in "abc"] == [0, 0, 0]
    words = {name: run.words(name) for name in "abc"}
    slow = next(name for name, text in words.items() if "the stacks of rank 2 " in text)
    # torch 2.14 also records the collective that it has not entered.
    by_record = f"where ranks 0, 1 wait: rank 2 on node-{slow} is in load_batch (train.py:"
    by_stacks = f"all wait for rank 2 on node-{slow} in load_batch (train.py:"
    assert any(by_record in text or by_stacks in text for text in words.values())
    assert "in load_batch" in words[slow]
    assert all("in all_reduce" in text for name, text in words.items() if name != slow)
