"""What ends when starting again does not help, with real torchrun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]
LIMIT = {"BIREME_FAILURES_WITHOUT_PROGRESS": "3"}


@pytest.mark.whole
def test_a_deterministic_bug_ends_the_run_on_all_nodes(job: Make) -> None:
    run = job(**LIMIT)
    (run.folder / "train.py").write_text(
        "print('step 7', flush=True)\nraise ValueError('the shape is wrong')"
    )
    for index, name in enumerate("ab"):
        run.start(name, index, BIREME_NODE=f"node-{name}", BIREME_TERMINATION_LOG=f"/mnt/{name}.last")
        (run.folder / f"{name}.last").touch()
    codes = {run.end(name) for name in "ab"}
    # Where one is always faster to fail, only it seems to be bad, until the other is alone.
    assert 70 in codes
    assert codes <= {70, 75}
    for name in "ab":
        last = (run.folder / f"{name}.last").read_text()
        assert "ValueError: the shape is wrong\n" in last
        assert "3 failures without a new step" in last
    # The first start brought step 7.
    assert run.rounds[-1][1] <= 12


def test_a_bad_node_ends_its_own_worker_while_the_other_trains(job: Make) -> None:
    run = job(**LIMIT, PET_NNODES="1:2", steps=400)
    script = run.folder / "train.py"
    broken = "if os.environ['BIREME_NODE'] == 'bad': raise RuntimeError('no device')\nimport torch\n"
    script.write_text(script.read_text().replace("import torch\n", broken, 1))
    run.start("a", 0, BIREME_NODE="good")
    run.wait_for("a", "step")
    run.start("b", 1, BIREME_NODE="bad")
    assert run.end("b") == 75
    assert "3 failures without a new step, all of them on bad" in run.words("b")
    run.wait_for("a", "step", run.notes("a", "step")[-1]["time"])
    assert run.workers["a"].poll() is None


@pytest.mark.whole
def test_new_steps_bring_back_all_restarts(job: Make) -> None:
    run = job(**LIMIT, PET_NNODES="1:1", PET_MAX_RESTARTS="1")
    (run.folder / "train.py").write_text(
        "import pathlib, sys\n"
        "n = pathlib.Path('/mnt/n')\n"
        "starts = len(n.read_text()) + 1 if n.exists() else 1\n"
        "n.write_text('x' * starts)\n"
        "print('step', starts, flush=True)\n"
        "sys.exit(starts < 5)\n"
    )
    run.start("a")
    assert run.end("a", 180) == 0
    assert len((run.folder / "n").read_text()) == 5
