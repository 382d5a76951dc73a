"""The all-reduce between neighbours before training, with real torch on gloo: there are no GPUs here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.whole

Make = Callable[..., Any]
PAIRS = {"BIREME_PREFLIGHT_PAIRS": "true"}
# More than any loopback: this worker finds its pairs slow, as one with a bad cable does.
BAD = {"BIREME_PREFLIGHT_BANDWIDTH": "1000000", "BIREME_NODE": "bad"}


def test_a_worker_whose_pairs_are_slow_ends_and_the_others_train(job: Make) -> None:
    run = job(**PAIRS, PET_NNODES="2:3", steps=2000)
    run.env["PET_RDZV_CONF"] += ",last_call_timeout=20"
    for index, (name, env) in enumerate({"a": {}, "b": BAD, "c": {}}.items()):
        run.start(name, index, **env)
    assert run.end("b", 300) == 75
    assert "GB/s, 1e+06 are needed" in run.words("b")
    assert "bad cannot train: the all-reduce of worker" in run.words("b")
    for name in ("a", "c"):
        run.wait_for(name, "step", seconds=120)
        assert run.workers[name].poll() is None


def test_only_a_newcomer_is_tried_and_a_bad_one_ends_beside_one_that_trains(job: Make) -> None:
    run = job(**PAIRS, PET_NNODES="1:2", steps=4000)
    run.start("a", 0)
    run.wait_for("a", "step", seconds=120)
    run.start("b", 1, **BAD)
    assert run.end("b", 300) == 75
    since = run.notes("a", "step")[-1]["time"]
    run.wait_for("a", "step", since, seconds=120)
    run.start("b", 1, BIREME_NODE="good")
    run.wait_for("b", "step", seconds=240)
    assert "preflight: workers 0 and 1 all-reduce at" in run.words("b")
