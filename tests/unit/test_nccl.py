"""What `bireme nccl` reads from a log of nccl-tests, and how it judges it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bireme.cli import cli, main
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.live.nccl import JobNetwork, Measured, judge, load_measured, parse
from bireme.plan.instances import Instance

Facts = tuple[Measured, ...]
Instances = Mapping[str, Instance]
Run = Callable[..., Result]
Sweep = dict[int, tuple[float, ...]]

# What large messages reached on two p4d.24xlarge: time in us, algbw, busbw; out of place, in place.
LARGE: Sweep = {
    268435456: (12738, 21.07, 39.51, 12802, 20.97, 39.31),
    536870912: (24375, 22.03, 41.30, 24403, 22.00, 41.25),
    1073741824: (47904, 22.41, 42.03, 47893, 22.42, 42.04),
}
SWEEP: Sweep = {8 << step: (629.7, 0.0, 0.0, 631.4, 0.0, 0.0) for step in range(25)} | LARGE
HOSTS = ("nccl-worker-0", "nccl-worker-1")
EFA_OLD = "NCCL INFO NET/OFI Selected Provider is efa"
EFA_NEW = "NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 4 nics)"
TCP = "NCCL INFO NET/OFI Selected Provider is tcp"
SOCKET = "NCCL INFO Using network Socket"
ROOT = Path(__file__).parents[2]
P4D = "p4d.24xlarge"


def line(size: int, kind: str, figures: tuple[float, ...], check: str) -> str:
    """One size of the sweep."""
    out_of_place, in_place = (f"{each[0]} {each[1]:.2f} {each[2]:.2f}" for each in (figures[:3], figures[3:]))
    return f"{size:12} {size // 4:12} {kind} {out_of_place} {check} {in_place} {check}"


def old_log(average: str | None = "8.23785", network: str = EFA_OLD, sizes: Sweep = SWEEP) -> str:
    """As nccl-tests 2.0 wrote it: errors instead of counts of wrong values, no root, tagged by mpirun."""
    rows = [line(size, "float sum", figures, "5e-07") for size, figures in sizes.items()]
    end = ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth : {average}"] if average else []
    lines = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824", *rows, *end]
    told = [f"[1,{rank}]<stdout>:{HOSTS[0]}:33:33 [{rank}] {network}" for rank in range(2)]
    nranks = f"[1,4]<stdout>:{HOSTS[0]}:33:33 [4] NCCL INFO comm 0x7fd4 rank 4 nranks 16 - Init COMPLETE"
    return "\n".join([*told, nranks, *(f"[1,0]<stdout>:{line}" for line in lines)])


def new_log(network: str = EFA_NEW, wrong: int = 0, ranks: int = 16, average: str = "8.24") -> str:
    """As nccl-tests 2.16 writes it: a root, counts of wrong values, a line for each rank."""
    host = [HOSTS[rank * 2 // ranks] for rank in range(ranks)]
    places = [
        f"#  Rank {rank:2} Group  0 Pid  {rank + 30} on {host[rank]} device  {rank % 8} [0x10] A100"
        for rank in range(ranks)
    ]
    rows = [line(size, "float     sum      -1", figures, "N/A") for size, figures in SWEEP.items()]
    end = [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {average}",
    ]
    return "\n".join([*places, f"{HOSTS[0]}:33:57 [3] {network}", *rows, *end, "#"])


@pytest.fixture(scope="module")
def measured(paths: Paths) -> Facts:
    return load_measured(paths)


@pytest.mark.parametrize(
    ("log", "places"), [(old_log(), (None, None)), (new_log(), (2, 4))], ids=["old", "new"]
)
def test_a_log_of_either_format_tells_network_size_and_bandwidth(log: str, places: tuple[Any, Any]) -> None:
    report = parse(log)
    assert report.is_efa
    assert (report.ranks, report.hosts, report.interfaces) == (16, *places)
    assert report.average == pytest.approx(8.24, abs=0.01)
    assert report.maximum == 42.04
    assert [size.bytes for size in report.sizes] == list(SWEEP)
    assert report.sizes[-1].out_of_place == 42.03
    assert report.wrong == 0


@pytest.mark.parametrize(
    ("network", "providers"),
    [
        (TCP, ("tcp",)),
        (SOCKET, ("socket",)),
        (f"{EFA_OLD}\nw:33:33 [0] {TCP}", ("efa", "tcp")),
        ("no word of it", ()),
    ],
)
def test_it_is_efa_only_if_all_ranks_that_name_a_provider_use_it(
    network: str, providers: tuple[str, ...]
) -> None:
    report = parse(new_log(network))
    assert report.providers == providers
    assert not report.is_efa


def test_a_plugin_that_chose_efa_and_then_failed_to_start_is_no_efa() -> None:
    failed = f"{EFA_NEW}\nNCCL WARN NET/OFI aws-ofi-nccl initialization failed\n{SOCKET}"
    assert parse(new_log(network=failed)).providers == ("socket",)
    assert parse(new_log(network=f"{EFA_NEW}\nNCCL INFO Using network AWS Libfabric")).is_efa


@pytest.mark.parametrize(
    "prefix",
    ["2026-01-12T10:11:12.123456789Z ", "[pod/nccl-0/main] ", "2026-01-12T10:11:12.123+00:00\t"],
)
def test_logs_with_times_or_the_names_of_pods_read_as_without_them(prefix: str) -> None:
    log = new_log()
    assert parse("\n".join(prefix + line for line in log.splitlines())) == parse(log)


def test_of_several_sweeps_in_a_log_the_last_one_counts() -> None:
    report = parse("\n".join([old_log("1.5", sizes={8: LARGE[268435456]}), new_log(average="7.5")]))
    assert report.average == 7.5
    assert [size.bytes for size in report.sizes] == list(SWEEP)


def test_a_line_that_mixes_the_output_of_two_processes_is_left_out() -> None:
    torn = "16 4 float sum 630.5 0.00 w:33: NCCL INFO 1e-07 628.1 0.00 0.00"
    assert parse(f"{torn}\n{old_log()}").sizes[0].bytes == 8


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Rank  0", f"Rank {'9' * 5000}"),
        ("values : 0", f"values : {'9' * 5000}"),
        ("found 4 nics", f"found {'9' * 5000} nics"),
    ],
)
def test_a_number_that_nccl_tests_cannot_print_is_passed_over(before: str, after: str) -> None:
    log = new_log()
    assert before in log
    assert parse(log.replace(before, after)).sizes == parse(log).sizes


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("", "has no result: no line of it is of nccl-tests"),
        ("mpirun was unable to find the specified executable file", "no line of it is of nccl-tests"),
        (old_log(average=None), "the sweep stopped after 1073741824 bytes"),
        ("# Avg bus bandwidth : 3", "without a line of sizes before it: give the whole log"),
        (old_log(average="9" * 5000), "has no result: the average bus bandwidth is '999"),
        (old_log(average="-nan"), "has no result: the average bus bandwidth is '-nan'"),
    ],
    ids=["empty", "other", "unfinished", "tail", "long", "nan"],
)
def test_a_log_without_a_result_is_one_sentence(log: str, sentence: str) -> None:
    with pytest.raises(BiremeError, match=r"^log\.txt ") as refusal:
        parse(log, "log.txt")
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(("efa", "average", "maximum"), [(4, 8.24, 42.04), (1, 3.02, 5.89), (0, 0.97, 2.38)])
def test_two_p4d_are_compared_with_what_was_published(
    efa: int, average: float, maximum: float, measured: Facts, instances: Instances
) -> None:
    found = judge(parse(new_log()), JobNetwork(P4D, 2, efa), measured, instances)
    assert (found.expected_average, found.expected_maximum) == (average, maximum)
    assert found.line_rate == 50
    assert not found.problems
    assert not found.remarks


def test_a_bandwidth_far_below_what_such_nodes_reached_is_remarked(
    measured: Facts, instances: Instances
) -> None:
    found = judge(parse(new_log(average="4.12")), JobNetwork(P4D, 2, 4), measured, instances)
    assert found.remarks == ("the average of 4.12 GB/s is 50% of the 8.24 that such nodes reached",)


def test_sweeps_over_other_sizes_are_not_compared(measured: Facts, instances: Instances) -> None:
    small = {size: row for size, row in SWEEP.items() if size < 1 << 20}
    found = judge(parse(old_log(sizes=small)), JobNetwork(P4D, 2, 4), measured, instances)
    assert (found.expected_average, found.expected_maximum) == (None, None)
    larger = {size: row for size, row in SWEEP.items() if size > 1 << 20}
    found = judge(parse(old_log(sizes=larger)), JobNetwork(P4D, 2, 4), measured, instances)
    assert (found.expected_average, found.expected_maximum) == (None, 42.04)


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (TCP, "the job asked for 4 EFA interfaces per node, but NCCL took tcp: the image needs"),
        ("no word of it", "its log does not name the network that NCCL took: run it with NCCL_DEBUG=INFO"),
    ],
)
def test_a_job_that_asked_for_efa_and_uses_another_network_has_a_problem(
    network: str, sentence: str, measured: Facts, instances: Instances
) -> None:
    (problem,) = judge(parse(new_log(network)), JobNetwork(P4D, 2, 4), measured, instances).problems
    assert sentence in problem
    assert not judge(parse(new_log(network)), JobNetwork(P4D, 2, 0), measured, instances).problems


def test_wrong_sums_are_a_problem_on_any_network(measured: Facts, instances: Instances) -> None:
    (problem,) = judge(parse(new_log(wrong=3)), None, measured, instances).problems
    assert problem.startswith("3 of the sums are wrong")


# --- the command ---


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run ``bireme nccl --file`` on a log."""

    def run(log: str, *options: str) -> Result:
        file = tmp_path / "log.txt"
        file.write_text(log)
        return CliRunner().invoke(cli, ["nccl", "--file", str(file), *options])

    return run


def test_the_command_prints_measured_and_expected_bandwidth(run: Run) -> None:
    result = run(old_log(), "--instance", P4D, "--nodes", "2", "--efa", "4")
    assert result.exit_code == 0
    assert "provider efa: EFA" in result.output
    lines = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line.strip()}
    assert lines["average"] == ["8.24", "8.24"]
    assert lines["maximum"] == ["42.04", "42.04", "50.00"]


def test_the_command_prints_json_for_machines(run: Run) -> None:
    result = run(new_log(), "--instance", P4D, "--efa", "1", "-o", "json")
    data = json.loads(result.stdout)
    assert data["efa"] is True
    assert data["busBandwidth"] == {"average": 8.24, "maximum": 42.04}
    assert data["expected"] == {"average": 3.02, "maximum": 5.89}
    assert data["asked"] == {"type": P4D, "nodes": 2, "efa": 1}


def test_the_command_fails_when_efa_was_asked_for_but_not_used(run: Run) -> None:
    result = run(new_log(TCP), "--efa", "4", "-o", "json")
    assert isinstance(result.exception, BiremeError)
    assert json.loads(result.stdout)["providers"] == ["tcp"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name a release or a log"),
        (["--file", "no-such-log.txt"], "log no-such-log.txt does not exist"),
        (["--file", "pyproject.toml"], "pyproject.toml has no result"),
    ],
)
def test_an_error_of_the_command_is_one_sentence_and_exit_code_1(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["bireme", "nccl", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert sentence in error
