"""The timeline of a run: why each world began, what restarts have cost, and its picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.live.timeline import Timeline
from bireme.live.timeline_picture import svg

SVG = "{http://www.w3.org/2000/svg}"
BEGAN = 1_790_000_000.0
BUG = "rank 1 on node-b failed in round 1 (exit code 1): ValueError: <the shape> & its size are wrong"


def world(round: int, begin: float, workers: str, **more: Any) -> dict[str, Any]:
    """What etcd keeps of a world; ``workers`` are `name@node/start`."""
    seats = [each.replace("/", "@").split("@") for each in workers.split()]
    return {"round": round, "time": BEGAN + begin, "cause": "", "workers": seats, **more}


def steps(begin: float, first: int, last: int) -> list[list[float]]:
    return [[BEGAN + begin + number - first, number] for number in range(first, last + 1)]


def a_run() -> Timeline:
    worlds = [
        world(1, 0, "0@node-a/1 1@node-b/1", samples=steps(5, 1, 20)),
        world(2, 30, "0@node-a/1 1@node-b/1", samples=steps(35, 11, 40), lostSteps=9,
              failure={"time": BEGAN + 26, "sentence": BUG}),
        world(3, 70, "0@node-a/1", samples=steps(72, 41, 60)),
        world(4, 100, "0@node-a/2 1@node-c/1 2@node-d/1", samples=steps(105, 61, 62), cause="agent"),
    ]  # fmt: skip
    return Timeline.of("train-r1", {"time": BEGAN + 120, "worlds": worlds})


def test_each_world_tells_why_it_began() -> None:
    assert [each.why for each in a_run().worlds] == [
        "the run began",
        BUG,
        "worker 1 was lost",
        "workers 1, 2 joined; worker 0 started again",
    ]


def test_a_world_ends_when_a_process_fails_and_lost_time_until_a_new_step_is_counted() -> None:
    run = a_run()
    assert [each.end - BEGAN for each in run.worlds] == [26, 70, 100, 120]
    # From step 20 at 24 s to step 21 at 45 s; from 40 at 64 s to 41 at 72 s; from 60 at 91 s to 61 at 105 s.
    assert [each.lost_seconds for each in run.worlds] == [0, 21, 8, 14]
    assert run.lost_steps == 9
    assert run.goodput == pytest.approx(1 - 43 / 101)
    assert run.worlds[0].steps_per_second == pytest.approx(1)


def test_a_moved_worker_and_a_restart_that_nobody_can_explain_are_told() -> None:
    worlds = [world(7, 0, "0@node-a/1"), world(8, 9, "0@node-b/2"), world(9, 12, "0@node-b/2")]
    run = Timeline.of("job", {"time": BEGAN + 20, "worlds": worlds})
    why = ["earlier worlds are not kept", "worker 0 moved to another node", "the workers met again"]
    assert [each.why for each in run.worlds] == why
    assert run.goodput is None


def test_a_world_names_the_ill_node_that_a_worker_left_before_it() -> None:
    worlds = [world(number + 1, 10 * number, f"0@node-{node}/{number}") for number, node in enumerate("abb")]
    left = (BEGAN + 9, "worker 0 leaves node-a: GpuMemWatch is True")
    run = Timeline.of("job", {"time": BEGAN + 30, "worlds": worlds}, [left])
    assert [left[1] in each.why for each in run.worlds] == [False, True, False]
    assert run.worlds[1].why.startswith("worker 0 moved to another node; ")


def test_a_world_names_the_snapshot_that_it_goes_on_from_and_what_snapshots_have_cost() -> None:
    told = {"snapshot": {"step": 41, "parts": 2, "claim": 1}, "blockedSeconds": 0.4}
    worlds = [world(1, 0, "0@a/1 1@b/1"), world(2, 30, "0@a/1 1@b/2", **told)]
    run = Timeline.of("job", {"time": BEGAN + 60, "worlds": worlds})
    again = Timeline.of("job", run.to_json())
    for each in (run.worlds[1], again.worlds[1]):
        assert each.blocked_seconds == 0.4
        assert each.why.endswith("; it goes on from the snapshot of step 41, 1 of 2 parts from the claim")


def test_the_picture_has_a_colour_for_each_cause_and_says_which() -> None:
    picture = ET.fromstring(svg(a_run()))
    assert [each.cause for each in a_run().worlds] == ["began", "failed", "lost", "joined"]
    bars = [bar for bar in picture.iter(f"{SVG}rect") if "round " in "".join(bar.itertext())]
    (began, failed, lost, joined), words = [bar.get("fill") for bar in bars[:4]], set(picture.itertext())
    assert len({began, failed, lost, joined}) == 4
    assert {"the run began", "a rank failed", "a worker was lost", "a worker joined"} <= words
    assert "started again" not in words


def test_spans_have_the_times_and_the_reasons_of_the_worlds(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(a_run().to_json()))
    done = CliRunner().invoke(cli, ["timeline", "--file", str(file), "-o", "otlp"], catch_exceptions=False)
    (resource,) = json.loads(done.output)["resourceSpans"]
    assert {"key": "service.name", "value": {"stringValue": "train-r1"}} in resource["resource"]["attributes"]
    run, *worlds = resource["scopeSpans"][0]["spans"]
    assert {(each["traceId"], each["parentSpanId"]) for each in worlds} == {(run["traceId"], run["spanId"])}
    assert (len(run["traceId"]), len({each["spanId"] for each in (run, *worlds)})) == (32, 5)
    seconds = [(int(each["endTimeUnixNano"]) - int(each["startTimeUnixNano"])) / 1e9 for each in worlds]
    assert seconds == [26, 40, 30, 20]
    assert worlds[0]["status"] == {"code": 2, "message": BUG}
    assert worlds[2]["status"] == {"code": 1}, "a newcomer is no error"
    assert {"key": "bireme.lost_steps", "value": {"intValue": "9"}} in worlds[1]["attributes"]


def test_the_picture_names_workers_nodes_and_causes() -> None:
    words = ["".join(text.itertext()) for text in ET.fromstring(svg(a_run())).iter(f"{SVG}text")]
    assert {"0 on node-a", "1 on node-b", "1 on node-c", "2 on node-d"} <= set(words)
    assert any("round 3: 0 steps and 8 s lost: worker 1 was lost" in each for each in words)
    assert "ValueError: <the shape> & its size are wrong" in " ".join(" ".join(words).split())
    assert words[0] == "train-r1"
    assert words[1] == "train-r1: 4 worlds of up to 3 workers in 2 min 0 s, 9 steps made again, goodput 57.4%"


def long_run(worlds: int, workers: int, seconds: float) -> Timeline:
    """Many restarts close to each other, with long names."""
    records = []
    for number in range(worlds):
        seats = " ".join(f"{each}@ip-10-0-{each}-{number % 3}.eu-west-1.compute.internal/{number}"
                         for each in range(workers - number % 2))  # fmt: skip
        begin = number * seconds / worlds
        failure = {"time": BEGAN + begin - 0.1, "sentence": "rank 3 failed: " + "very long words " * 30}
        samples = [[BEGAN + begin + 0.1, number], [BEGAN + begin + 0.2, number * 1_000_000]]
        records.append(world(number + 1, begin, seats, samples=samples, failure=failure))
    return Timeline.of(
        "a-release-with-a-name-of-many-characters-r1", {"time": BEGAN + seconds, "worlds": records}
    )


def boxes(picture: ET.Element) -> Iterator[tuple[float, float, float, float, str]]:
    """Left, top, right and bottom of all that is drawn; texts are taken as wide as a wide font makes them."""
    for group in picture.findall(f"{SVG}g"):
        dx, dy = map(float, group.get("transform", "")[len("translate(") : -1].split())
        for each in group.iter():
            at = {key: float(value) for key, value in each.attrib.items() if key in POSITIONS}
            if each.tag == f"{SVG}text":
                words = each.text or ""
                size = 16 if each.get("class") == "title" else 10 if each.get("class") == "rank" else 12
                width = len(words) * size * 0.6
                style = (each.get("class") or "").split()
                left = at["x"] - (
                    width if "end" in style else width / 2 if {"middle", "rank"} & set(style) else 0
                )
                yield left + dx, at["y"] + dy - size, left + dx + width, at["y"] + dy, words
            elif each.tag == f"{SVG}rect":
                yield at["x"] + dx, at["y"] + dy, at["x"] + dx + at["width"], at["y"] + dy + at["height"], ""
            elif each.tag == f"{SVG}polyline":
                points = [tuple(map(float, point.split(","))) for point in each.get("points", "").split()]
                xs, ys = [x + dx for x, _ in points], [y + dy for _, y in points]
                yield min(xs), min(ys), max(xs), max(ys), ""
            elif each.tag in (f"{SVG}line", f"{SVG}circle"):
                for x, y in (
                    (at.get("x1", at.get("cx")), at.get("y1", at.get("cy"))),
                    (at.get("x2"), at.get("y2")),
                ):
                    if x is not None and y is not None:
                        yield x + dx, y + dy, x + dx, y + dy, ""


POSITIONS = {"x", "y", "width", "height", "x1", "x2", "y1", "y2", "cx", "cy"}
RUNS = {"short": a_run(), "long": long_run(200, 100, 86_400 * 30), "dense": long_run(60, 3, 1)}


@pytest.mark.parametrize("name", RUNS)
def test_the_picture_stays_within_its_frame_and_no_texts_overlap(name: str) -> None:
    picture = ET.fromstring(svg(RUNS[name]))
    width, height = float(picture.get("width", 0)), float(picture.get("height", 0))
    texts = []
    for left, top, right, bottom, words in boxes(picture):
        assert min(left, top, width - right, height - bottom) >= 0, (words, left, top, right, bottom)
        texts += [(left, top, right, bottom, words)] if words else []
    for number, one in enumerate(texts):
        for other in texts[number + 1 :]:
            apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
            assert apart, (one, other)


def test_long_runs_are_shortened() -> None:
    words = ["".join(text.itertext()) for text in ET.fromstring(svg(RUNS["long"])).iter(f"{SVG}text")]
    assert "… 180 earlier" in words
    assert sum(" on ip-10" in each for each in words) == 24
    assert "… 276 more" in words


def test_a_run_without_a_world_or_a_step_has_a_picture() -> None:
    assert "no world has begun" in svg(Timeline.of("job", {"time": BEGAN, "worlds": []}))
    just_begun = svg(Timeline.of("job", {"time": BEGAN, "worlds": [world(1, 0, "0@a/1")]}))
    assert "steps per second" not in just_begun
    ET.fromstring(just_begun)


def test_a_kept_timeline_is_drawn_again_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(a_run().to_json()))
    shown = [
        CliRunner().invoke(cli, ["timeline", "--file", str(file), "-o", form], catch_exceptions=False).output
        for form in ("svg", "json", "text")
    ]
    assert shown[0] == svg(a_run())
    assert json.loads(shown[1]) == a_run().to_json()
    assert "worker 1 was lost" in shown[2]
