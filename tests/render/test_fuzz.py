"""All keys with hostile values: a slice of them at each change, every one in the full tier."""

from __future__ import annotations

import hashlib
import sys

import pytest

from bireme.helm import Renderer
from bireme.paths import Paths
from tests.render.fuzz import Fuzzer, Trial

SEED = 20261123
JUDGED, RENDERED = 6000, 40


@pytest.fixture(scope="module")
def fuzzer(bireme_paths: Paths, renderer: Renderer) -> Fuzzer:
    return Fuzzer(bireme_paths, renderer)


@pytest.fixture(scope="module")
def accepted(fuzzer: Fuzzer) -> list[Trial]:
    """The trials of the slice that the schemas accept; the others were refused with a sentence."""
    # By a digest, so that a new key adds its own trials and leaves the others in the slice.
    chosen = sorted(fuzzer.trials(), key=lambda trial: hashlib.sha256(f"{SEED} {trial}".encode()).digest())[
        :JUDGED
    ]
    return [trial for trial in chosen if not fuzzer.refused_by_schema(trial)]


def test_the_slice_reaches_every_chart(accepted: list[Trial], fuzzer: Fuzzer) -> None:
    assert {trial.chart for trial in accepted} == {trial.chart for trial in fuzzer.trials()}


def test_a_value_is_in_its_field_or_refused_with_a_sentence(fuzzer: Fuzzer, accepted: list[Trial]) -> None:
    assert list(fuzzer.faults(accepted[:RENDERED])) == []


@pytest.mark.whole
def test_every_key_takes_or_refuses_every_value(fuzzer: Fuzzer) -> None:
    """Takes an hour on two cores; standard error, with -s, has the progress."""
    accepted = [trial for trial in fuzzer.trials() if not fuzzer.refused_by_schema(trial)]
    faults: list[str] = []
    for start in range(0, len(accepted), 200):
        faults += fuzzer.faults(accepted[start : start + 200])
        print(f"{start} of {len(accepted)}: {len(faults)} faults", file=sys.stderr, flush=True)
    assert faults == []
