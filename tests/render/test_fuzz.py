"""All keys with hostile values: a slice of them at each change, every one in the full tier."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.tools import Toolbox
from tests.render.fuzz import Fuzzer, Trial

SEED = 20261123
JUDGED, RENDERED = 6000, 40
CHARTS = sorted(
    file.parent.name for file in Paths.discover(start=Path(__file__)).charts.glob("*/values.schema.json")
)


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


@pytest.mark.parametrize(
    ("printed", "value", "fault"),
    [
        ("{{ .Values.a }}", "010", "ConfigMap data.a is 8, not of the type of 'zq9h'"),
        ("{{ .Values.a }}", "zq9 #", "ConfigMap data.a has a part of it: 'zq9'"),
        ("{{ .Values.a }}", "&zq9", "ConfigMap data.a is None, not of the type of 'zq9h'"),
        ("{{ .Values.a }}", "zq9\nkey: evil", "ConfigMap has a key"),
        ("{{ .Values.a }}", "zq9\n---\nkind: Evil", "2 objects, not 1"),
        ("{{ .Values.a }}", "[zq9", "refused by an accident: YAML parse error"),
        ("{{ .Values.a | lower | quote }}", "zq9'\"", None),
        ("{{ .Values.a | trunc 4 | quote }}", "[bold]zq9[/]", "ConfigMap data.a is '[bol'"),
    ],
)
def test_a_value_that_leaves_its_field_is_found(
    tmp_path: Path, renderer: Renderer, printed: str, value: str, fault: str | None
) -> None:
    chart = tmp_path / "charts" / "leaky"
    (chart / "templates").mkdir(parents=True)
    (chart / "ci").mkdir()
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: leaky\nversion: 0.1.0\n")
    (chart / "values.yaml").write_text("a: b\n")
    (chart / "ci" / "full-values.yaml").write_text("a: c\n")
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    (chart / "values.schema.json").write_text(json.dumps(schema))
    (chart / "templates" / "map.yaml").write_text(
        f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: leaky\ndata:\n  a: {printed}\n"
    )
    found = list(
        Fuzzer(Paths(tmp_path, tmp_path, tmp_path), renderer).faults([Trial("leaky", (("a",),), value)])
    )
    if fault is None:
        assert found == []
    else:
        assert any(fault in each for each in found), found


@pytest.mark.whole
@pytest.mark.parametrize("chart", CHARTS)
def test_every_key_takes_or_refuses_every_value(bireme_paths: Paths, toolbox: Toolbox, chart: str) -> None:
    """Takes half an hour on two cores; standard error, with -s, has the progress."""
    fuzzer = Fuzzer(bireme_paths, Renderer(toolbox, bireme_paths, keeps=False))
    assert list(fuzzer.all_faults(chart)) == []
