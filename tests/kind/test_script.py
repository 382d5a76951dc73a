"""A user's own script: the example of the README trains, and a change of the script is soon there."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bireme.core.paths import Paths
from bireme.helm import scripts
from bireme.testing.pytest_plugin import ReleaseFactory
from tests.kind.shell import NODE_TYPE, Shell, until
from tests.kind.training import KIND, outcome

pytestmark = pytest.mark.usefixtures("torch_images")


def test_the_example_of_the_readme_trains(release: ReleaseFactory, shell: Shell, bireme_paths: Paths) -> None:
    program = scripts.packed(str(bireme_paths.root / "examples/train.py"))
    own: dict[str, Any] = {"instance": NODE_TYPE, "files": [KIND], "timeout": 180}
    job = release("torch-elastic", values={**program, "workers": 2, "elastic": {"minWorkers": 2}}, **own)
    until(lambda: outcome(job) is not None, 240, "the job to finish")
    workers = f"app.kubernetes.io/instance={job.name},app.kubernetes.io/component=worker"
    assert outcome(job) == "Complete", shell.logs(workers, job.namespace)
    assert "step 100 loss 0.0" in shell.logs(workers, job.namespace)


@pytest.mark.whole
def test_a_changed_folder_runs_seconds_after_it_is_asked_for(
    release: ReleaseFactory, shell: Shell, tmp_path: Path
) -> None:
    """From the moment when its Job is there: how long the first run takes to end is the script's."""
    (tmp_path / "train.py").write_text("import time, said\nprint(said.word, flush=True)\ntime.sleep(3600)\n")
    own: dict[str, Any] = {"instance": NODE_TYPE, "files": [KIND], "timeout": 180}

    def program(word: str) -> dict[str, Any]:
        (tmp_path / "said.py").write_text(f"word = {word!r}\n")
        return scripts.packed(str(tmp_path))

    def says(word: str) -> bool:
        workers = f"app.kubernetes.io/instance={job.name},app.kubernetes.io/component=worker"
        return word in shell.logs(workers, job.namespace)

    job = release("torch-elastic", values=program("before"), **own)
    until(lambda: says("before"), 120, "the first script to run")
    began = time.time()
    job.upgrade(values=program("after"), replace=True, **own)
    (run,) = job.objects("jobs")
    (pod,) = (
        each for each in job.objects("pods") if each["metadata"]["name"].startswith(run["metadata"]["name"])
    )
    created, started = (
        datetime.fromisoformat(text).timestamp()
        for text in (
            run["metadata"]["creationTimestamp"],
            pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"],
        )
    )
    print(
        f"\nstopped, saved and replaced in {created - began:.0f} s, Running {started - created:.0f} s later"
    )
    # 1 s where nothing else runs. Beside other tests a node may be busy.
    assert started - created <= 120
    until(lambda: says("after"), 120, "the second script to run")
