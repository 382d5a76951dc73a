"""`bireme simulate`: what becomes of a trace with static jobs and with elastic ones."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import pytest
from click.testing import CliRunner

from bireme.autoscale import PUBLISHED, Outcome, Settings, TracedJob, sample, simulate
from bireme.cli import cli
from bireme.core.errors import BiremeError
from tests.support.documents import ROOT, blocks

QUIET = Settings(nodes=4, failures=0, scaling=1.0, resize=0.0, cooldown=0.0, every=10.0)
HELIOS = PUBLISHED["helios"]


def both(trace: Sequence[TracedJob], settings: Settings = QUIET) -> tuple[Outcome, Outcome]:
    return simulate(trace, settings, elastic=False), simulate(trace, settings, elastic=True)


def test_a_static_job_takes_its_duration_and_waits_for_its_places() -> None:
    static, _ = both([TracedJob("a", 0, 3, 100), TracedJob("b", 10, 2, 50)])
    assert static.waiting == (0, 90)
    assert static.finishing == (100, 140)


def test_a_small_job_passes_one_that_does_not_fit() -> None:
    static, _ = both(
        [TracedJob("a", 0, 3, 100), TracedJob("large", 10, 4, 50), TracedJob("small", 20, 1, 30)]
    )
    assert static.waiting == (0, 0, 90)


def test_an_elastic_job_takes_the_whole_cluster_while_it_is_free() -> None:
    _, elastic = both([TracedJob("a", 0, 2, 100, minimum=1, maximum=4)])
    # Two workers would take 100 s; the controller decides for the first time at once.
    assert elastic.finishing[0] == pytest.approx(50, abs=1)
    assert elastic.grown == 1


def test_an_elastic_job_gives_way_to_one_that_comes_later() -> None:
    trace = [TracedJob("a", 0, 4, 100, minimum=1, maximum=4), TracedJob("b", 15, 3, 20)]
    static, elastic = both(trace)
    assert static.waiting == (0, 85)
    # It waits for the next decision.
    assert elastic.waiting[0] == pytest.approx(5, abs=0.1)
    assert elastic.shrunk == 1


def test_urgent_jobs_stop_others_which_train_on_from_where_they_were() -> None:
    static, _ = both([TracedJob("a", 0, 4, 100), TracedJob("urgent", 10, 4, 50, priority=10)])
    assert static.preempted == 1
    assert static.waiting == (0, 0)
    assert sorted(static.finishing) == [50, pytest.approx(150 + Settings(1).restart)]


def test_a_lost_node_costs_a_static_job_its_places_and_an_elastic_one_a_worker() -> None:
    often = Settings(nodes=4, failures=365 * 24, repair=1800, checkpoint=600, seed=3)
    static, elastic = both([TracedJob("a", 0, 4, 20_000, minimum=1, maximum=4)], often)
    assert static.failures > 5
    assert 20_000 < elastic.finishing[0] < static.finishing[0]


@pytest.mark.parametrize(("workers", "share"), [(1, 0.25), (2, 0.5), (3, 0.75)])
def test_a_lost_node_hits_jobs_by_their_share_of_the_places(workers: int, share: float) -> None:
    often = Settings(nodes=4, failures=365 * 24, repair=1, checkpoint=600, seed=3)
    static, elastic = both([TracedJob("a", 0, workers, 200_000)], often)
    assert static.failures > 200
    assert static.restarted / static.failures == pytest.approx(share, abs=0.1)
    assert static.finishing[0] > 200_000 + static.restarted * often.restart
    # The same nodes are lost at the same times, and this job is not elastic.
    assert (elastic.failures, elastic.finishing) == (static.failures, static.finishing)


def test_a_lost_node_takes_the_workers_of_a_job_that_were_on_it() -> None:
    often = Settings(nodes=4, places=8, failures=365 * 24, repair=1, cooldown=1e9, seed=3)
    one = [TracedJob("a", 0, 32, 20_000, minimum=8, maximum=32)]
    _, elastic = both(one, often)
    assert elastic.restarted == elastic.failures > 10


@pytest.mark.parametrize("elastic", [False, True])
def test_a_job_that_cannot_end_is_told_and_not_waited_for(elastic: bool) -> None:
    """It needs all nodes at once, and some are always lost."""
    often = Settings(nodes=1000, failures=100)
    with pytest.raises(BiremeError, match=r"all-nodes with 1000 workers does not end: .* lower --failures"):
        simulate([TracedJob("all-nodes", 0, 1000, 3600)], often, elastic)


@pytest.mark.parametrize("seed", range(5))
def test_no_place_is_used_twice_and_every_job_ends(seed: int) -> None:
    trace = sample(HELIOS, jobs=600, places=64, load=1.2, elastic=0.7, seed=seed)
    settings = Settings(nodes=8, places=8, failures=50, seed=seed)
    for outcome in both(trace, settings):
        assert outcome.jobs == 600
        assert min(count for _, count in outcome.busy) >= 0
        assert max(count for _, count in outcome.busy) <= 64
        assert 0 < outcome.useful <= outcome.utilisation <= 1
        assert min(outcome.waiting) >= 0
    assert both(trace, settings) == both(trace, settings)


def test_elastic_jobs_start_sooner_on_a_busy_cluster() -> None:
    trace = sample(HELIOS, jobs=2000, places=128, load=1.0, elastic=0.5, seed=1)
    static, elastic = both(trace, Settings(nodes=16, places=8))
    assert fmean(elastic.waiting) < 0.7 * fmean(static.waiting)
    assert fmean(elastic.finishing) < fmean(static.finishing)
    assert elastic.utilisation > static.utilisation


def test_the_sample_has_the_figures_of_the_paper() -> None:
    drawn = sample(HELIOS, jobs=20_000, places=10_000, load=0.9, elastic=0.5, seed=1)
    assert fmean(job.workers for job in drawn) == pytest.approx(HELIOS.mean_workers, rel=0.15)
    assert median(job.duration for job in drawn) == pytest.approx(HELIOS.median_seconds, rel=0.05)
    # The mean of so wide a distribution is known from its shape better than from 20,000 of it.
    durations = sorted(job.duration for job in drawn)
    spread = math.log(durations[16827] / durations[10000])
    assert HELIOS.median_seconds * math.exp(spread**2 / 2) == pytest.approx(HELIOS.mean_seconds, rel=0.15)
    assert sum(job.workers == 1 for job in drawn) > 10_000
    assert fmean(job.elastic for job in drawn if job.workers > 1) == pytest.approx(0.5, abs=0.02)


def test_a_thousand_nodes_and_five_thousand_jobs_are_simulated() -> None:
    trace = sample(HELIOS, jobs=5000, places=8000, load=0.9, elastic=0.5, seed=1)
    assert simulate(trace, Settings(1000, 8), elastic=True).jobs == 5000


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["simulate", *arguments])
    if isinstance(done.exception, BiremeError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def test_the_command_compares_both_ways(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("submit,workers,duration,minimum,maximum\n0,4,100,1,4\n15,3,20,,\n")
    arguments = (str(file), "--nodes", "4", "--places", "1", "--failures", "0")
    found = json.loads(run(*arguments, "-o", "json"))
    assert found["static"]["waitingSeconds"]["mean"] == 42.5
    assert found["elastic"]["waitingSeconds"]["mean"] < 20
    assert found["elastic"]["shrunk"] == 1
    assert "wait for the first worker, mean" in run(*arguments)
    picture = run(*arguments, "-o", "svg")
    assert picture.startswith("<svg ")
    assert "trace.csv on 4 nodes with 1 workers each" in picture


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("submit,workers\n0,1\n", "it lacks duration"),
        ("submit,workers,duration\n", "has no jobs"),
        ("submit,workers,duration\n0,1,5\nsoon,1,5\n", ":3: submit is 'soon', but must be a number"),
        ("submit,workers,duration\n0,1,nan\n", ":2: duration is 'nan', but must be a number"),
        ("submit,workers,duration\n0,1.5,5\n", ":2: workers is 1.5, but must be a whole number"),
        ("submit,workers,duration\n0,1,0\n", ":2: duration is 0, but must be more than 0 seconds"),
        (
            "submit,workers,duration,minimum\n0,2,5,3\n",
            ":2: workers is 2, but must be at least 1, not less than",
        ),
        ("submit,workers,duration\n0,500,5\n", "row-2 has 500 workers, and 32 nodes have room for 256"),
    ],
)
def test_a_wrong_trace_is_told_by_its_row(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(BiremeError) as caught:
        run(str(file))
    assert sentence in str(caught.value)


def test_all_wrong_rows_are_told_at_once_but_not_a_thousand(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("submit,workers,duration\n" + "x,1,5\n" * 1000)
    with pytest.raises(BiremeError) as caught:
        run(str(file))
    assert str(caught.value).count("\n") == 10
    assert str(caught.value).endswith("and 990 more")


def test_the_document_shows_what_its_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_folder = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", bin_folder, prepend=os.pathsep)
    for block in blocks(ROOT / "docs/elasticity.md")[1:]:
        for command in block.commands:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command.text],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        assert block.missing(done.stdout) == [], done.stdout


def test_the_picture_of_the_document_is_what_the_command_draws() -> None:
    assert (ROOT / "docs/elasticity.svg").read_text() == run("--sample", "helios", "-o", "svg"), "make docs"


def test_a_trace_or_a_sample_is_needed() -> None:
    with pytest.raises(BiremeError) as caught:
        run()
    assert "bireme simulate --sample helios" in str(caught.value)
