"""What `bireme check` tells of templates: which lines and branches ran, and which values nobody reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.check.checker import Checker
from bireme.check.coverage import Coverage, value_findings
from bireme.cli import cli
from bireme.core.paths import Paths
from bireme.helm import Renderer, RenderRequest
from bireme.helm.process import RenderProcess
from bireme.helm.values import read_file
from bireme.tools import Toolbox
from tests.support.tiers import core

MakeChart = Callable[..., Path]
CHARTS = sorted(file.parent.name for file in Paths.discover().charts.glob("*/ci"))

# A person counts 10 lines with text or an action, and two arms of each of four branches.
WEB = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data:
  {{- if .Values.first }}
  first: "yes"
  {{- else if .Values.second }}
  second: "yes"
  {{- end }}
  {{- range .Values.items }}
  {{ . }}: {{ $.Values.text | default "none" }}
  {{- end }}
"""


@pytest.fixture
def checker(renderer: Renderer, toolbox: Toolbox) -> Checker:
    toolbox.ensure(["helm-render"])
    return Checker(renderer, toolbox)


def covered(checker: Checker, chart: Path, **cases: Mapping[str, Any]) -> Coverage:
    (chart / "ci").mkdir(exist_ok=True)
    for name, values in cases.items():
        (chart / "ci" / f"{name}-values.yaml").write_text(json.dumps(values))
    made = checker.check([chart]).coverage
    assert made
    return made


def missed(made: Coverage) -> list[list[str]]:
    return [file.missed() for file in made.files]


def test_lines_and_branches_are_those_that_a_person_counts(checker: Checker, make_chart: MakeChart) -> None:
    values = {"first": False, "second": False, "items": [], "text": ""}
    chart = make_chart("web", values=values, templates={"web.yaml": WEB})
    made = covered(checker, chart)
    # With the defaults there is no item: three lines do not run, and three branches have their else.
    assert missed(made) == [["6", "8", "11", "11 default: given", "11 default: other"]]
    assert (made.lines, made.branches) == (7 / 10, 3 / 8)
    made = covered(checker, chart, first={"first": True, "items": ["a"]})
    assert missed(made) == [["8", "11 default: given"]]
    made = covered(checker, chart, second={"second": True, "items": ["a"], "text": "b"})
    assert missed(made) == [[]]
    assert (made.lines, made.branches) == (1, 1)
    assert str(made) == "templates: 100.0% of lines and 100.0% of branches ran"


def test_a_range_over_what_always_has_an_item_is_no_branch(checker: Checker, make_chart: MakeChart) -> None:
    texts = {
        '{{ range list "x" "y" }}{{ . }}{{ end }}': 0,
        "{{ range append .Values.items 1 }}{{ . }}{{ end }}": 0,
        '{{ range splitList "," .Values.text }}{{ . }}{{ end }}': 0,
        "{{ with .Values.items }}{{ range . }}{{ . }}{{ end }}{{ end }}": 2,
        "{{ with .Values.items }}{{ range . | compact }}{{ . }}{{ end }}{{ end }}": 4,
        "{{ range .Values.items }}{{ . }}{{ end }}": 2,
    }
    templates = {f"{number}.yaml": f"a: b{text}" for number, text in enumerate(texts)}
    made = covered(checker, make_chart("web", values={"items": [1], "text": ""}, templates=templates))
    assert [len(file.branches) for file in made.files] == [*texts.values()]


def test_definitions_that_nothing_includes_are_lines_that_never_ran(
    checker: Checker, make_chart: MakeChart
) -> None:
    helpers = '{{ define "used" }}a{{ end }}\n{{ define "lost" }}\nb\n{{ end }}\n'
    web = 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ include "used" . }}}\n'
    chart = make_chart("web", templates={"_helpers.tpl": helpers, "web.yaml": web})
    assert missed(covered(checker, chart)) == [["3"], []]


def test_what_a_library_gives_counts_where_the_library_is_checked_too(
    checker: Checker, make_chart: MakeChart
) -> None:
    part = '{{ define "part" }}{{ if .Values.a }}\na: "1"\n{{ end }}{{ end }}'
    library = make_chart("part", templates={"_part.tpl": part})
    (library / "Chart.yaml").write_text("{apiVersion: v2, name: part, version: 0.1.0, type: library}")
    web = 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {{ include "part" . }}\n'
    needs = [{"name": "part", "version": "0.1.0", "repository": "file://../part"}]
    chart = make_chart("web", values={"a": False}, templates={"web.yaml": web}, dependencies=needs)
    (chart / "charts").mkdir()
    (chart / "charts" / "part").symlink_to(library)
    [alone] = covered(checker, chart).files
    assert alone.file == f"{chart}/templates/web.yaml"
    both = checker.check([chart, library]).coverage
    assert both
    assert {file.file: file.missed() for file in both.files} == {
        f"{chart}/templates/web.yaml": [],
        f"{library}/templates/_part.tpl": ["2"],
    }


RULES = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ include "name" . }}}
{{- include "refuse" (include "rules" . | trim) }}
{{- if .Values.old }}
{{- fail "old: it has another name" }}
{{- end }}
{{- define "name" }}{{ if .Values.name }}named{{ else }}web{{ end }}{{ end }}
{{- define "refuse" }}{{ if . }}{{ fail . }}{{ end }}{{ end }}
{{- define "rules" }}
{{- include "ports" . }}
{{ include "sizes" . }}
{{- end }}
{{- define "ports" }}{{ if .Values.open }}open{{ end }}{{ end }}
{{- define "sizes" }}
{{- if .Values.size }}
size: {{ .Values.size | default "none" }} is too much
{{- end }}
{{- end }}
"""


def test_arms_that_only_refuse_are_counted_apart(checker: Checker, make_chart: MakeChart) -> None:
    values = dict.fromkeys(["open", "size", "old", "name"], "")
    made = covered(checker, make_chart("web", values=values, templates={"web.yaml": RULES}))
    assert missed(made) == [["8 if"]]
    assert str(made).splitlines()[0].endswith("of branches ran, and 0 of 6 refusals")
    # A page has each line, in the colour of what ran of it.
    page = made.html()
    assert '<span class="partly" title="never: if">    8' in page
    assert '<span class="refuses" title="">   17 ' in page
    assert "DA:17," not in made.lcov()


READS = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: web, labels: {{ .Values.labels | toJson }}}
data:
  a: {{ .Values.pod.image | quote }}
  {{- with .Values.pod }}
  b: {{ .policy | quote }}
  {{- end }}
  {{- $pod := .Values.pod }}
  c: {{ $pod.wiht | quote }}
  d: {{ index .Values "ports" "http" | quote }}
  e: {{ include "whole" (dict "it" .Values.resources "root" $) | quote }}
  {{- range $name, $one := .Values.extra }}
  f-{{ $name }}: {{ $one | quote }}
  {{- end }}
  g: {{ .Values.security | toJson | quote }}
  h: {{ .Values.security.privileged | quote }}
"""


def test_values_that_no_template_reads_and_keys_that_only_templates_have_are_found(
    checker: Checker, make_chart: MakeChart
) -> None:
    values = {
        "labels": {"a": "b"},
        "pod": {"image": "web", "policy": "Always", "width": 1},
        "ports": {"http": 80, "https": 443},
        "resources": {"cpu": 1},
        "extra": {"one": 1},
        "security": {"runAsUser": 1},
        "global": {"region": ""},
        "typo": True,
    }
    helpers = '{{ define "whole" }}{{ .it | toYaml }}{{ end }}'
    chart = make_chart("web", values=values, templates={"web.yaml": READS, "_helpers.tpl": helpers})
    found = {each.path: each.sentence for each in checker.check([chart]).findings if each.rule == "values"}
    assert found == {
        "pod.width": "no template reads it",
        "ports.https": "no template reads it",
        "typo": "no template reads it",
        "pod.wiht": "a template reads it, values.yaml does not have it",
    }


NOT_REACHED = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data:
  {{- if .Values.tls.enabled }}
  port: {{ .Values.tls.port | quote }}
  {{- toYaml .Values.tls.extra | nindent 2 }}
  {{- end }}
  {{- if and .Values.job .Values.seconds }}
  a: b
  {{- end }}
  c: {{ if .Values.tls.enabled }}{{ .Values.inline }}{{ end }}
"""


def test_what_is_read_where_no_values_lead_is_no_finding(checker: Checker, make_chart: MakeChart) -> None:
    values = {
        "tls": {"enabled": False, "port": 1, "extra": {"a": 1}, "prot": 2},
        "job": False,
        "seconds": 1,
        "inline": 1,
    }
    chart = make_chart("web", values=values, templates={"web.yaml": NOT_REACHED})
    checked = checker.check([chart])
    assert [each.path for each in checked.findings if each.rule == "values"] == ["tls.prot"]
    assert checked.coverage
    assert missed(checked.coverage) == [["6-7", "10", "12 if"]]


# `make test` also runs `bireme check charts`, which looks at the values of all.
@pytest.mark.parametrize("chart", core("autoscaler", "torch-elastic", of=CHARTS))
def test_a_covered_render_is_the_render_and_each_chart_uses_its_values(
    renderer: Renderer, toolbox: Toolbox, paths: Paths, chart: str
) -> None:
    toolbox.ensure(["helm-render"])
    folder = paths.charts / chart
    assert renderer.render_binary
    process = RenderProcess(renderer.render_binary, {})
    files = sorted(folder.glob("ci/*-values.yaml"))
    requests = [RenderRequest(folder, read_file(each)) for each in files]
    for request in requests:
        plain = process.answer(request.values, **request.asked())
        assert process.answer(request.values, covers=True, **request.asked())["text"] == plain["text"]
    made = [renderer.covered(request) for request in requests]
    assert list(value_findings(folder, [each for each in made if each])) == []


def test_people_are_told_the_templates_that_lack_most_and_how_to_see_the_others(
    checker: Checker, make_chart: MakeChart
) -> None:
    maps = "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: web-{name}}}\ndata:\n{lines}"
    line = "  {{{{ if .Values.a }}}}a{number}: b{{{{ end }}}}\n"
    lines = {
        str(name): "".join(line.format(number=number) for number in range(name)) for name in range(1, 13)
    }
    templates = {f"web-{name}.yaml": maps.format(name=name, lines=text) for name, text in lines.items()}
    covered = checker.check([make_chart("web", values="a: false\n", templates=templates)]).coverage
    told = str(covered).splitlines()
    assert [text.partition(":")[0].rpartition("/")[2] for text in told[1:-1]] == [
        f"web-{number}.yaml" for number in range(12, 2, -1)
    ]
    assert told[1].endswith("14 if, and 2 more")
    assert told[-1] == "  and 2 more templates: --coverage FILE.html shows each line"


def test_a_tracefile_of_lcov_has_each_line_and_branch_and_few_branches_are_a_finding(
    toolbox: Toolbox, make_chart: MakeChart, tmp_path: Path
) -> None:
    toolbox.ensure(["helm-render"])
    web = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n{{ if .Values.a }}\ndata: {}\n{{ end }}"
    chart = make_chart("web", values="a: false\n", templates={"web.yaml": web})
    trace = tmp_path / "lcov.info"
    done = CliRunner().invoke(cli, ["check", str(chart), "--coverage", str(trace), "--branches", "90"])
    assert done.exit_code == 1
    assert "50.0% of the branches ran, and --branches asks for 90 %" in done.stdout
    assert f"{chart}/templates/web.yaml: lines 80%, branches 50%, not: 5" in done.stdout
    assert trace.read_text().splitlines() == [
        f"SF:{chart}/templates/web.yaml",
        "BRDA:4,1,0,-",
        "BRDA:4,1,1,2",
        "BRF:2",
        "BRH:1",
        *("DA:1,2", "DA:2,2", "DA:3,2", "DA:4,2", "DA:5,0"),
        *("LF:5", "LH:4", "end_of_record"),
    ]
    done = CliRunner().invoke(cli, ["check", str(chart), "-o", "json"])
    [told] = json.loads(done.stdout)["coverage"]
    assert (told["lines"], told["branches"]) == (0.8, 0.5)


def test_a_chart_without_values_and_branches_is_wholly_reached(
    checker: Checker, make_chart: MakeChart
) -> None:
    chart = make_chart("web", templates={"a.yaml": "{apiVersion: v1, kind: Secret, metadata: {name: web}}"})
    (chart / "values.yaml").unlink()
    made = covered(checker, chart)
    assert (made.lines, made.branches) == (1, 1)


def test_where_nothing_tells_what_ran_the_command_says_what_would(
    make_chart: MakeChart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toolbox, "ready", lambda self, name, instead_of: None)
    chart = make_chart("web", templates={"a.yaml": "{apiVersion: v1, kind: Secret, metadata: {name: web}}"})
    done = CliRunner().invoke(cli, ["check", str(chart)])
    assert (done.exit_code, done.stdout) == (0, "✓ nothing found\n")
    assert "bireme tools --get helm-render" in done.stderr
    done = CliRunner().invoke(cli, ["check", str(chart), "--branches", "90"])
    assert "bireme tools --get helm-render" in str(done.exception)
