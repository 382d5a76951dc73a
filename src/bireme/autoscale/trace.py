"""Traces of jobs: read from a CSV, or drawn from the figures of a published one."""

from __future__ import annotations

import csv
import io
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bireme.core.errors import BiremeError
from bireme.helm import values as value_files

COLUMNS = ("submit", "workers", "duration", "priority", "minimum", "maximum")
_REQUIRED = COLUMNS[:3]
_MISTAKES_SHOWN = 10


@dataclass(frozen=True)
class TracedJob:
    """A job of a trace: ``submit`` and ``duration`` in seconds, the latter with ``workers`` workers.

    It is elastic with a ``minimum`` or ``maximum`` other than ``workers``, which 0 stands for.
    """

    name: str
    submit: float
    workers: int
    duration: float
    priority: int = 0
    minimum: int = 0
    maximum: int = 0

    @property
    def least(self) -> int:
        """The workers with which it starts and to which it shrinks."""
        return self.minimum or self.workers

    @property
    def most(self) -> int:
        """The workers to which it grows."""
        return self.maximum or self.workers

    @property
    def elastic(self) -> bool:
        """Whether its number of workers may change."""
        return self.least < self.most


@dataclass(frozen=True)
class Published:
    """What a paper says of a trace: workers of a job on average and at most, seconds of a job."""

    title: str
    mean_workers: float
    most_workers: int
    median_seconds: float
    mean_seconds: float


PUBLISHED: Mapping[str, Published] = {
    # Table 2 and section 3 of Hu et al., "Characterization and Prediction of Deep Learning Workloads in
    # Large-Scale GPU Datacenters" (SC '21, arXiv 2109.01313): GPUs and seconds of Helios's GPU jobs.
    "helios": Published("Helios (SenseTime, 2020)", 3.72, 2048, 206, 6652),
}
URGENT_SHARE = 0.1
"""The share of a sample's jobs that have priority 10. No paper says it; it is a choice."""


def read(path: Path) -> list[TracedJob]:
    """The jobs of a CSV file with a line of column names. Raises BiremeError, a sentence for each wrong row.

    Columns: submit and duration (seconds), workers, and if wanted priority, minimum and maximum.
    """
    try:
        with io.StringIO(value_files.read_text(path, "trace"), newline="") as file:
            table = csv.DictReader(file)
            missing = [name for name in _REQUIRED if name not in (table.fieldnames or ())]
            if missing:
                raise BiremeError(
                    f"{path}: the first line must name the columns {', '.join(_REQUIRED)} (and may name "
                    f"{', '.join(COLUMNS[3:])}); it lacks {', '.join(missing)}"
                )
            rows = list(enumerate(table, 2))
    except csv.Error as error:
        raise BiremeError(f"{path} cannot be read as CSV: {error}") from error
    mistakes: list[str] = []
    jobs = []
    for number, row in rows:
        try:
            jobs.append(_job(f"row-{number}", row))
        except ValueError as error:
            mistakes.append(f"{path}:{number}: {error}")
    if mistakes:
        more = [f"and {len(mistakes) - _MISTAKES_SHOWN} more"] if len(mistakes) > _MISTAKES_SHOWN else []
        raise BiremeError("\n".join([*mistakes[:_MISTAKES_SHOWN], *more]))
    if not jobs:
        raise BiremeError(f"{path} has no jobs: give it at least one line below the column names")
    return sorted(jobs, key=lambda job: job.submit)


def _job(name: str, row: Mapping[str, str | None]) -> TracedJob:
    numbers = dict(_numbers(row))
    workers = numbers["workers"]
    job = TracedJob(
        name,
        numbers["submit"],
        int(workers),
        numbers["duration"],
        int(numbers.get("priority", 0)),
        int(numbers.get("minimum", workers)),
        int(numbers.get("maximum", workers)),
    )
    if not 1 <= job.minimum <= job.workers <= job.maximum:
        raise ValueError(
            f"workers is {job.workers}, but must be at least 1, not less than minimum ({job.minimum}) "
            f"and not more than maximum ({job.maximum})"
        )
    if job.duration <= 0:
        raise ValueError(f"duration is {job.duration:g}, but must be more than 0 seconds")
    return job


def _numbers(row: Mapping[str, str | None]) -> Iterator[tuple[str, float]]:
    for column in COLUMNS:
        text = (row.get(column) or "").strip()
        if not text and column not in _REQUIRED:
            continue
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{column} is {text!r}, but must be a number")
        if column not in ("submit", "duration") and value != int(value):
            raise ValueError(f"{column} is {text}, but must be a whole number")
        yield column, value


def sample(
    published: Published, jobs: int, places: int, load: float, elastic: float, seed: int
) -> list[TracedJob]:
    """A trace with the figures of a published one.

    Sizes are powers of two, each rarer than the one below by the same factor, cut at half of the
    ``places``; durations are log-normal; submissions follow a day that is busiest in the afternoon. They
    are as close as makes ``load`` times the work that ``places`` workers do. ``elastic``: the share of the
    jobs with two workers or more that may shrink to half and grow to twice their size.
    """
    chance = random.Random(seed)
    sizes = [2**power for power in range(int(math.log2(published.most_workers)) + 1)]
    factor = _factor(published, sizes)
    spread = math.sqrt(2 * math.log(published.mean_seconds / published.median_seconds))
    drawn = [
        (
            min(
                chance.choices(sizes, [factor**power for power in range(len(sizes))])[0], max(places // 2, 1)
            ),
            max(chance.lognormvariate(math.log(published.median_seconds), spread), 1.0),
        )
        for _ in range(jobs)
    ]
    seconds = sum(workers * duration for workers, duration in drawn) / (places * load)
    moments = sorted(_moment(chance, seconds) for _ in range(jobs))
    found = []
    for number, (submit, (workers, duration)) in enumerate(zip(moments, drawn, strict=True)):
        stretches = workers > 1 and chance.random() < elastic
        least, most = (workers // 2, min(2 * workers, places)) if stretches else (workers, workers)
        priority = 10 if chance.random() < URGENT_SHARE else 0
        found.append(TracedJob(f"job-{number}", submit, workers, duration, priority, least, most))
    return found


def _factor(published: Published, sizes: list[int]) -> float:
    """The factor by which each size is rarer than the one below, so that their mean is the published one."""
    low, high = 0.0, 1.0
    for _ in range(60):
        factor = (low + high) / 2
        weights = [factor**power for power in range(len(sizes))]
        mean = sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / sum(weights)
        low, high = (factor, high) if mean < published.mean_workers else (low, factor)
    return low


def _moment(chance: random.Random, seconds: float) -> float:
    """A time in ``seconds``: twice as likely at three in the afternoon as at three in the morning."""
    while True:
        moment = chance.random() * seconds
        if chance.random() < (3 + math.cos(2 * math.pi * (moment / 86400 - 15 / 24))) / 4:
            return moment
