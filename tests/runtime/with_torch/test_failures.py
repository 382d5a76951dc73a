"""What ends when starting again does not help, with real torchrun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Make = Callable[..., Any]
LIMIT = {"BIREME_FAILURES_WITHOUT_PROGRESS": "3"}


def test_a_bad_node_ends_its_own_worker_while_the_other_trains(job: Make) -> None:
    run = job(**LIMIT, PET_NNODES="1:2", steps=400)
    script = run.folder / "train.py"
    broken = "if os.environ['BIREME_NODE'] == 'bad': raise RuntimeError('no device')\nimport torch\n"
    script.write_text(script.read_text().replace("import torch\n", broken, 1))
    run.hold()
    run.start("a", 0, BIREME_NODE="good")
    run.wait_for("a", "step")
    run.start("b", 1, BIREME_NODE="bad")
    assert run.end("b") == 75
    assert "3 failures without a new step, all of them on bad" in run.words("b")
    run.let_go()
    run.wait_for("a", "step", run.notes("a", "step")[-1]["time"])
    assert run.workers["a"].poll() is None
