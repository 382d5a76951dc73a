"""Reads logs of NVIDIA's nccl-tests: the network that NCCL used, and its bandwidth beside the expected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.core.plain import Plain
from bireme.helm import values
from bireme.plan.instances import Instance
from bireme.plan.topology import Plan

EFA_PROVIDER = "efa"
SHARE_EXPECTED = 0.8
"""Less than this share of the bandwidth measured elsewhere is remarked; placement alone changes a tenth."""

# mpirun --tag-output puts [job,rank]<stdout>: before a line, --timestamp-output the time. kubectl logs
# --prefix puts [pod/NAME/CONTAINER], --timestamps and CloudWatch's export put the time.
_TAG = re.compile(
    r"^(?:\[pod/\S+\] )?(?:\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?[ \t])?"
    r"(?:\S.*?<std(?:out|err)>:\s?)?"
)
# No number that nccl-tests print is longer than 18 digits; longer ones are not theirs.
_SIZES = re.compile(r"^\s*(\d{1,18})\s+\d+\s+[a-z]\w*\s+[a-z]\w*\s+(-?\d.*)$")
_FIGURE = re.compile(r"\d{1,18}(\.\d{1,18})?")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")
_OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d{1,18})\b")
_RANK = re.compile(r"#\s*Rank\s+(\d{1,18})\b.*? on\s+(\S+)\s+device")
_NRANKS = re.compile(r"\bnranks (\d{1,18})\b")
_PROVIDER = re.compile(
    r"NET/OFI Selected provider is ([\w;-]+)(?:.*\(found (\d{1,18}) nics?\))?", re.IGNORECASE
)
# What NCCL took in the end: a plugin may choose efa, and then fail to start.
_NETWORK = re.compile(r"NCCL INFO Using network (\S.*?)\s*$")
_OWN_TRANSPORTS = ("Socket", "IB")
_GB_PER_GBIT = 1 / 8


@dataclass(frozen=True)
class Size(Plain):
    """One line of the sweep: message size in bytes, bus bandwidths in GB/s."""

    bytes: int
    out_of_place: float
    in_place: float | None = None

    @property
    def best(self) -> float:
        return max(self.out_of_place, self.in_place or 0.0)


@dataclass(frozen=True)
class Report(Plain):
    """The last sweep of a log.

    ``providers`` are those of libfabric that the ranks chose, or NCCL's own transport ("socket", "ib"); empty
    if the log names none (it does with NCCL_DEBUG=INFO). ``interfaces`` is the number of network cards a rank
    found; ``ranks`` and ``hosts`` are None if the log does not name them. ``average`` and ``maximum`` are bus
    bandwidths in GB/s, ``wrong`` is the number of wrong values.
    """

    hidden = ("average",)

    providers: tuple[str, ...]
    interfaces: int | None
    ranks: int | None
    hosts: int | None
    sizes: tuple[Size, ...]
    average: float
    wrong: int

    @property
    def maximum(self) -> float:
        return max(size.best for size in self.sizes)

    @property
    def is_efa(self) -> bool:
        """Whether all ranks that name their provider use EFA."""
        return self.providers == (EFA_PROVIDER,)


@dataclass(frozen=True)
class JobNetwork:
    """What a job asked for: instance type, pods with ranks (one per node), EFA interfaces per pod."""

    type: str | None
    nodes: int
    efa: int


@dataclass(frozen=True)
class Measured:
    """The bandwidth that a sweep from ``min_bytes`` to ``max_bytes`` reached on such nodes, in GB/s."""

    asked: JobNetwork
    min_bytes: int
    max_bytes: int
    average: float
    maximum: float


@dataclass(frozen=True)
class Verdict:
    """A report beside what is expected of it.

    ``expected_average`` and ``expected_maximum`` are None where nothing comparable was measured: other nodes
    or another range of sizes. ``line_rate`` is that of the node's network, in GB/s.
    ``problems`` are reasons not to trust the cluster, ``remarks`` are smaller oddities.
    """

    report: Report
    asked: JobNetwork | None
    expected_average: float | None
    expected_maximum: float | None
    line_rate: float | None
    problems: tuple[str, ...]
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for ``-o json``."""
        report = self.report
        return {
            "efa": report.is_efa,
            **report.to_json(),
            "busBandwidth": {"average": report.average, "maximum": report.maximum},
            "expected": {"average": self.expected_average, "maximum": self.expected_maximum},
            "lineRate": self.line_rate,
            "asked": asdict(self.asked) if self.asked else None,
            "problems": list(self.problems),
            "remarks": list(self.remarks),
        }


def parse(log: str, name: str = "the log") -> Report:
    """The last sweep in the output of a program of nccl-tests, tagged by mpirun or not.

    ``name`` is what to call the log in errors. Raises BiremeError when there is no finished sweep in it.
    """
    lines = [_TAG.sub("", line) for line in log.splitlines()]
    ends = [number for number, line in enumerate(lines) if _AVERAGE.search(line)]
    if not ends:
        raise BiremeError(_unfinished(lines, name))
    start = ends[-2] + 1 if len(ends) > 1 else 0
    sweep = lines[start : ends[-1] + 1]
    sizes = tuple(_sizes(sweep))
    if not sizes:
        raise BiremeError(f"{name} has an average without a line of sizes before it: give the whole log")
    ranks = {int(found[1]): found[2] for found in _found(_RANK, sweep)}
    world_sizes = [int(found[1]) for found in _found(_NRANKS, lines)]
    providers = list(_found(_PROVIDER, lines))
    networks = [found[1] for found in _found(_NETWORK, lines)]
    own = [each for each in networks if each in _OWN_TRANSPORTS]
    from_plugin = [found[1] for found in providers] if not networks or len(own) < len(networks) else []
    chosen = [*own, *from_plugin]
    return Report(
        providers=tuple(sorted({each.lower() for each in chosen})),
        interfaces=min((int(found[2]) for found in providers if found[2]), default=None),
        ranks=len(ranks) or max(world_sizes, default=None),
        hosts=len(set(ranks.values())) or None,
        sizes=sizes,
        average=_number(next(_found(_AVERAGE, sweep))[1], name),
        wrong=sum(int(found[1]) for found in _found(_OUT_OF_BOUNDS, sweep)),
    )


def load_measured(paths: Paths) -> tuple[Measured, ...]:
    """The published figures of values/bandwidth.yaml."""
    return tuple(
        Measured(
            JobNetwork(each["type"], each["nodes"], each["efa"]),
            each["minBytes"],
            each["maxBytes"],
            float(each["average"]),
            float(each["maximum"]),
        )
        for each in values.read_file(paths.values / "bandwidth.yaml")["measured"]
    )


def asked_by(plan: Plan) -> JobNetwork | None:
    """What the pods of ``plan`` that have ranks ask for; None if none has."""
    pods = [pod for pod in plan.pods if pod.rank is not None]
    if not pods:
        return None
    return JobNetwork(pods[0].instance_type, len(pods), min(pod.efa for pod in pods))


def judge(
    report: Report, asked: JobNetwork | None, measured: Iterable[Measured], instances: Mapping[str, Instance]
) -> Verdict:
    """Compare a report with what such nodes reached elsewhere; ``asked`` is None if the nodes are unknown."""
    instance = instances.get(asked.type) if asked and asked.type else None
    alike = next((each for each in measured if each.asked == asked), None)
    first, last = report.sizes[0].bytes, report.sizes[-1].bytes
    # Small messages pull the average down, and only large ones reach the maximum.
    same_sizes = alike is not None and (first, last) == (alike.min_bytes, alike.max_bytes)
    average = alike.average if alike and same_sizes else None
    maximum = alike.maximum if alike and last >= alike.max_bytes else None
    return Verdict(
        report=report,
        asked=asked,
        expected_average=average,
        expected_maximum=maximum,
        line_rate=instance.network_gbps * _GB_PER_GBIT if instance else None,
        problems=tuple(_problems(report, asked)),
        remarks=tuple(_remarks(report, average, maximum)),
    )


def _problems(report: Report, asked: JobNetwork | None) -> Iterable[str]:
    if report.wrong:
        yield f"{report.wrong} of the sums are wrong: do not train on this network before that is explained"
    if asked is None or not asked.efa or report.is_efa:
        return
    start = f"the job asked for {asked.efa} EFA interfaces per node, but "
    if not report.providers:
        yield start + "its log does not name the network that NCCL took: run it with NCCL_DEBUG=INFO"
        return
    taken = " and ".join(report.providers)
    yield start + (
        f"NCCL took {taken}: the image needs libfabric's EFA provider and NCCL's aws-ofi-nccl plugin, "
        "and the nodes a security group that lets them talk to each other"
    )


def _remarks(report: Report, average: float | None, maximum: float | None) -> Iterable[str]:
    for name, has, expected in (("average", report.average, average), ("maximum", report.maximum, maximum)):
        if expected is not None and has < SHARE_EXPECTED * expected:
            share = has / expected
            yield f"the {name} of {has:.2f} GB/s is {share:.0%} of the {expected} that such nodes reached"


def _unfinished(lines: Sequence[str], name: str) -> str:
    sizes = list(_sizes(lines))
    if sizes:
        return (
            f"{name} has no result: the sweep stopped after {sizes[-1].bytes} bytes; its last lines say why"
        )
    return (
        f"{name} has no result: no line of it is of nccl-tests; the job may still be starting, or has failed"
    )


def _sizes(lines: Iterable[str]) -> Iterable[Size]:
    for found in _found(_SIZES, lines):
        numbers = found[2].split()
        # After an optional root come time, algbw, busbw and #wrong: out of place, then in place.
        figures = numbers[len(numbers) % 4 :]
        # Lines that processes wrote into each other are left out.
        if len(figures) in (4, 8) and all(map(_FIGURE.fullmatch, figures[2::4])):
            out_of_place, *in_place = map(float, figures[2::4])
            yield Size(int(found[1]), out_of_place, *in_place)


def _found(pattern: re.Pattern[str], lines: Iterable[str]) -> Iterator[re.Match[str]]:
    return (found for found in map(pattern.search, lines) if found)


def _number(text: str, name: str) -> float:
    if not _FIGURE.fullmatch(text):
        raise BiremeError(f"{name} has no result: the average bus bandwidth is {text[:40]!r}")
    return float(text)
