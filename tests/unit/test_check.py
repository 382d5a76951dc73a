"""`bireme check`: every check finds what it is for, in charts with and without a schema, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.check.checker import Checker, find_charts
from bireme.check.files import file_findings
from bireme.check.objects import object_findings
from bireme.cli import cli
from bireme.core.findings import Finding
from bireme.core.manifests import Manifest
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.schemas import bundle
from bireme.tools import Toolbox

MakeChart = Callable[..., Path]
CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {a: {{ .Values.a | quote }}}\n"
NEEDS_A = '{{ if not .Values.a }}{{ fail "a: the chart needs it" }}{{ end }}\n' + CONFIG % "web"


@pytest.fixture
def checker(renderer: Renderer, toolbox: Toolbox) -> Checker:
    return Checker(renderer, toolbox)


def add_values(chart: Path, name: str, **values: Any) -> None:
    (chart / "ci").mkdir(exist_ok=True)
    (chart / "ci" / f"{name}-values.yaml").write_text(json.dumps(values))


# --- renders ---


def test_files_that_are_named_are_checked_beside_those_of_the_chart(
    renderer: Renderer, toolbox: Toolbox, make_chart: MakeChart, tmp_path: Path
) -> None:
    chart = make_chart("web", values="a: 1\n", templates={"a.yaml": NEEDS_A})
    more = tmp_path / "production.yaml"
    more.write_text("a: null\n")
    found = Checker(renderer, toolbox, [more]).check([chart]).findings
    assert {(Path(each.file).name, "the chart needs it" in each.sentence) for each in found} == {
        ("production.yaml", True)
    }


def test_what_is_wrong_with_an_object_is_found_once_and_names_its_template(
    checker: Checker, make_chart: MakeChart
) -> None:
    secret = "{apiVersion: v1, kind: Secret, metadata: {name: web}}"
    config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: web}, dat: {}}"
    chart = make_chart("web", templates={"a.yaml": config, "b.yaml": f"{secret}\n---\n{secret}"})
    add_values(chart, "more", more=True)
    sentence, file = "the object: additional properties 'dat' not allowed", f"{chart}/templates/{{}}.yaml"
    assert sorted(checker.check([chart]).findings, key=str) == [
        Finding("kubernetes", sentence, file=file.format("a"), path="ConfigMap/web"),
        Finding(
            "duplicates", "two objects have this name", "rename one", file=file.format("b"), path="Secret/web"
        ),
    ]


def test_a_finding_that_only_a_values_file_shows_names_that_file(
    checker: Checker, make_chart: MakeChart
) -> None:
    chart = make_chart("web", values="a: web\n", templates={"a.yaml": CONFIG % "{{ .Values.a }}"})
    add_values(chart, "fine", a="blue")
    add_values(chart, "upper", a="Web")
    [finding] = checker.check([chart]).findings
    assert str(finding).startswith(f"{chart}/templates/a.yaml: object name does not conform to Kubernetes")
    assert str(finding).endswith("(with ci/upper-values.yaml)")


def test_a_finding_on_one_version_of_kubernetes_names_that_version(
    checker: Checker, make_chart: MakeChart
) -> None:
    newest = '{{ if semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version }}wrong: 1{{ end }}\n'
    chart = make_chart("web", values="a: 1\n", templates={"a.yaml": CONFIG % "web" + newest})
    [finding] = checker.check([chart]).findings
    assert "'wrong' not allowed (with Kubernetes 1.36." in finding.sentence


def test_a_version_that_the_chart_does_not_support_is_left_out(
    checker: Checker, make_chart: MakeChart, toolbox: Toolbox, own_paths: Paths
) -> None:
    chart = make_chart("web", values="a: 1\n", templates={"a.yaml": CONFIG % "web"})
    about = json.loads((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(json.dumps(about | {"kubeVersion": ">=1.36.0-0"}))
    assert checker.check([chart]).findings == []
    (chart / "Chart.yaml").write_text(json.dumps(about | {"kubeVersion": ">=1.99.0-0"}))
    [finding] = Checker(Renderer(toolbox, own_paths), toolbox).check([chart]).findings
    assert (finding.rule, finding.file) == ("render", f"{chart}/Chart.yaml")
    assert "chart requires kubeVersion: >=1.99.0-0" in finding.sentence


def test_a_template_that_does_not_render_is_found_once(checker: Checker, make_chart: MakeChart) -> None:
    chart = make_chart("web", templates={"a.yaml": "a: {{ .Values.a.b.c }}\n"})
    add_values(chart, "more", more=True)
    [finding] = checker.check([chart]).findings
    assert (finding.rule, finding.file, finding.line) == ("render", f"{chart}/templates/a.yaml", 1)
    assert "nil pointer evaluating" in finding.sentence


def test_defaults_may_be_refused_if_a_values_file_renders(checker: Checker, make_chart: MakeChart) -> None:
    chart = make_chart("web", values={"a": ""}, templates={"a.yaml": NEEDS_A})
    assert [str(finding) for finding in checker.check([chart]).findings] == [
        f"{chart}/values.yaml: a: the chart needs it\n"
        "    add a ci/*-values.yaml that gives what the chart needs"
    ]
    add_values(chart, "given", a="x")
    assert checker.check([chart]).findings == []
    add_values(chart, "refused", a="")
    assert checker.check([chart]).findings == [
        Finding("render", "a: the chart needs it", file=f"{chart}/ci/refused-values.yaml")
    ]


def test_a_library_chart_is_not_rendered(checker: Checker, make_chart: MakeChart) -> None:
    chart = make_chart("parts", templates={"_parts.tpl": ""})
    about = json.loads((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(json.dumps(about | {"type": "library"}))
    assert checker.check([chart]).findings == []


def test_what_helm_lint_finds_is_a_finding_on_the_newest_kubernetes(
    checker: Checker, make_chart: MakeChart
) -> None:
    old = "{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: %s}}"
    chart = make_chart("web", templates={"a.yaml": old % "web", "b.yaml": old % "Web"})
    add_values(chart, "more", more=True)
    found = [each for each in checker.check([chart]).findings if each.rule in ("helm", "kubernetes")]
    assert sorted((each.rule, each.severity, each.file.removeprefix(f"{chart}/")) for each in found) == [
        ("helm", "warning", "templates/b.yaml"),
        ("kubernetes", "error", "templates/a.yaml"),
        ("kubernetes", "error", "templates/b.yaml"),
    ]
    assert found[0].sentence == "policy/v1beta1 PodDisruptionBudget is not served"
    assert "unavailable in v1.25+; use policy/v1 PodDisruptionBudget" in found[0].remedy
    assert 'does not conform to Kubernetes naming requirements: "Web"' in found[2].sentence


def test_a_schema_that_helm_cannot_read_is_one_finding_in_its_file(
    checker: Checker, make_chart: MakeChart
) -> None:
    chart = make_chart(
        "web",
        values={"a": ""},
        schema={"properties": {"a": {"pattern": "^(?!latest)"}}},
        templates={"a.yaml": CONFIG % "web"},
    )
    add_values(chart, "more", a="more")
    [finding] = checker.check([chart]).findings
    assert (finding.rule, finding.file) == ("render", f"{chart}/values.schema.json")
    assert finding.sentence.splitlines() == [
        "web: values.schema.json is not a JSON Schema",
        "web: properties.a.pattern: '^(?!latest)' is not valid regex: error parsing regexp: "
        "invalid or unsupported Perl syntax: `(?!`",
    ]


# --- the command ---


def test_the_command_prints_findings_and_exits_with_1(make_chart: MakeChart, tmp_path: Path) -> None:
    make_chart("good", values="a: 1\n", templates={"a.yaml": CONFIG % "web"})
    wrong = "{apiVersion: v1, kind: Secret, metadata: {name: web}, dat: {}}"
    bad = make_chart("bad", templates={"a.yaml": wrong})
    sentence = "the object: additional properties 'dat' not allowed"
    done = CliRunner().invoke(cli, ["check", str(tmp_path)])
    assert done.exit_code == 1
    found = [line for line in done.stdout.splitlines() if "branches" not in line]
    assert found == [f"✗ {bad}/templates/a.yaml: Secret/web: {sentence}"]

    done = CliRunner().invoke(cli, ["check", str(bad), "-o", "sarif"])
    assert done.exit_code == 1
    [result] = json.loads(done.stdout)["runs"][0]["results"]
    assert (result["ruleId"], result["message"]) == ("kubernetes", {"text": sentence})


def test_findings_of_a_baseline_are_left_out_and_fail_on_says_what_ends_with_1(
    make_chart: MakeChart, tmp_path: Path
) -> None:
    text = "{apiVersion: v1, kind: Secret, metadata: {name: web, namespace: %s}}"
    chart = make_chart("web", templates={"a.yaml": text % "shops"})
    run = CliRunner().invoke
    first = run(cli, ["check", str(chart), "-o", "json"])
    assert (first.exit_code, json.loads(first.stdout)["findings"][0]["severity"]) == (1, "warning")
    assert run(cli, ["check", str(chart), "--fail-on", "error"]).exit_code == 0
    accepted = tmp_path / "accepted.json"
    accepted.write_text(first.stdout)
    done = run(cli, ["check", str(chart), "--baseline", str(accepted)])
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "✓ nothing found")
    (chart / "templates" / "b.yaml").write_text(text.replace("web", "own") % "lent")
    done = run(cli, ["check", str(chart), "--baseline", str(accepted), "-o", "markdown"])
    assert done.exit_code == 1
    assert "has no namespace lent" in done.stdout
    assert "shops" not in done.stdout
    assert "<details><summary>templates: 100.0% of lines" in done.stdout
    accepted.write_text("[]")
    done = run(cli, ["check", str(chart), "--baseline", str(accepted)])
    assert f"write it with: bireme check CHART -o json > {accepted}" in str(done.exception)


def test_a_folder_stands_for_its_charts_and_no_chart_is_named_twice(
    make_chart: MakeChart, tmp_path: Path
) -> None:
    web, api = make_chart("web"), make_chart("api")
    assert find_charts([web, tmp_path]) == [web, api]


# --- values.yaml and the schema ---


VALUES = """# -- Number of workers
workers: 1
shm:
  # -- Size
  size: ""
"""
SCHEMA = {
    "properties": {
        "workers": {"$ref": "#/$defs/many"},
        "shm": {"type": "object", "properties": {"size": {"type": "string"}}},
    },
    "$defs": {"many": {"type": "integer"}},
}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/definitions/a"}}, "definitions": {"a": {"properties": {"b": {}}}}},
        {"allOf": [{"properties": {"a": {}}}]},
        {"properties": {"kind": {}}, "if": {}, "then": {"properties": {"a": {}}}},
        {"properties": {"kind": {}}, "patternProperties": {"^[ab]$": {}}},
        {"required": ["a"]},
    ],
    ids=["definitions", "allOf", "then", "patternProperties", "open"],
)
def test_properties_of_any_kind_count(schema: dict[str, Any], make_chart: MakeChart, paths: Paths) -> None:
    chart = make_chart(
        "web",
        {"a": {"b": 1}, **({"kind": 1} if "kind" in schema.get("properties", {}) else {})},
        schema=schema,
    )
    assert file_findings(chart, paths) == []


def test_keys_that_a_schema_takes_without_a_look_are_one_warning_for_each_mapping(
    make_chart: MakeChart, paths: Paths
) -> None:
    schema = {"properties": {"web": {"properties": {"port": {}}, "additionalProperties": False}}}
    chart = make_chart("web", {"web": {"port": 1, "sise": 1}, "a": 1, "b": 2}, schema=schema)
    closed, others = file_findings(chart, paths)
    assert (closed.severity, closed.path) == ("error", "web.sise")
    assert (others.severity, others.sentence.rpartition(" of ")[2]) == ("warning", "a, b")


def test_keys_of_helm_and_of_dependencies_need_no_description(make_chart: MakeChart, paths: Paths) -> None:
    properties = {
        "global": {"type": "object"},
        "enabled": {},
        "sub": {"type": "object", "properties": {"on": {}}},
    }
    chart = make_chart(
        "web",
        values="# -- The sub chart\nsub:\n  size: 5\n",
        schema={"properties": properties},
        dependencies=[{"name": "sub", "version": "0.1.0"}],
    )
    assert file_findings(chart, paths) == []


def test_a_schema_that_does_not_follow_from_its_source_is_found(
    make_chart: MakeChart, tmp_path: Path, own_paths: Paths
) -> None:
    chart = make_chart("web", VALUES, schema={}, within=tmp_path)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "common.schema.json").write_text("{}")
    (tmp_path / "schemas" / "web.schema.json").write_text(json.dumps(SCHEMA))
    project = Paths(tmp_path, own_paths.cache, own_paths.state)
    drifted = ("drift", "it does not follow from schemas/ and values.yaml", "make schemas")
    assert drifted in [(each.rule, each.sentence, each.remedy) for each in file_findings(chart, project)]
    bundle.write(project)
    assert file_findings(chart, project) == []


def test_every_chart_of_the_project_has_a_schema(paths: Paths) -> None:
    charts = [file.parent for file in paths.charts.glob("*/Chart.yaml") if "library" not in file.read_text()]
    assert [chart for chart in charts if not (chart / bundle.BUNDLE).is_file()] == []


# --- objects ---


def problems(*manifests: Manifest) -> list[str]:
    return [str(replace(each, file="")) for each in object_findings(manifests)]


def pod(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def job(name: str = "j", completions: int = 3, mode: str = "Indexed", **template: Any) -> Manifest:
    spec = {
        "completionMode": mode,
        "completions": completions,
        "template": {"spec": {"containers": []}, **template},
    }
    return Manifest({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})


def named(kind: str, name: str) -> Manifest:
    return Manifest({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})


def mpi_job(name: str, **replicas: Any) -> Manifest:
    return Manifest({"kind": "MPIJob", "metadata": {"name": name}, "spec": {"mpiReplicaSpecs": replicas}})


def test_list_items_that_server_side_apply_cannot_tell_apart_are_found() -> None:
    first = {"name": "i", "volumeMounts": [{"mountPath": "/d"}] * 2}
    spec = {"initContainers": [first], "volumes": [{"name": "v"}] * 2}
    cron = {"jobTemplate": {"spec": {"template": {"spec": spec}}}}
    assert sorted(problems(Manifest({"kind": "CronJob", "metadata": {"name": "c"}, "spec": cron}))) == [
        "CronJob/c: two entries in volumeMounts of container i have mountPath /d\n    keep one",
        "CronJob/c: two entries in volumes of pod have name v\n    keep one",
    ]
    ports = [{"port": 1, "name": "a"}, {"port": 1, "protocol": "UDP", "name": "a"}, {"port": 1, "name": "b"}]
    service = Manifest({"kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}})
    assert problems(service) == [
        "Service/s: two entries in ports of service have port 1, protocol TCP\n    keep one",
        "Service/s: two ports are named a\n    rename one",
    ]
    claims = [{"metadata": {"name": "data"}}] * 2
    members = Manifest(
        {"kind": "StatefulSet", "metadata": {"name": "m"}, "spec": {"volumeClaimTemplates": claims}}
    )
    assert problems(members) == [
        "StatefulSet/m: two entries in volumeClaimTemplates of spec have name data\n    keep one"
    ]


def test_both_roles_of_an_mpi_job_are_checked() -> None:
    twice = {"spec": {"containers": [{"name": "c", "env": [{"name": "A"}, {"name": "A"}]}]}}
    once = {"spec": {"containers": [{"name": "c"}, {"name": "c"}]}}
    found = mpi_job("m", Launcher={"template": once}, Worker={"template": twice})
    assert problems(found) == [
        "MPIJob/m: two entries in containers of pod have name c\n    keep one",
        "MPIJob/m: two entries in env of container c have name A\n    keep one",
    ]


def test_one_port_under_two_protocols_is_no_duplicate() -> None:
    ports = [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}]
    assert problems(Manifest(pod(containers=[{"name": "c", "ports": ports}]))) == []


@pytest.mark.parametrize(
    "fine",
    [
        named("StatefulSet", "s" * 52),
        named("Job", "j" * 63),
        job("j" * 61, completions=10),
        job("j" * 63, mode="NonIndexed"),
        mpi_job("m" * 54),
        mpi_job("m" * 53, Worker={"replicas": 100, "template": {}}),
    ],
    ids=repr,
)
def test_names_that_controllers_can_add_to_pass(fine: Manifest) -> None:
    assert problems(fine) == []


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (named("StatefulSet", "s" * 53), "the name has 53 characters, 52 is the most (its controller adds"),
        (job("j" * 61, completions=11), "pod names would have 64 characters with their index"),
        (mpi_job("m" * 55), "host names would have 64 characters with role and index"),
        (mpi_job("m" * 54, Worker={"replicas": 11, "template": {}}), "host names would have 64 characters"),
    ],
    ids=lambda case: repr(case)[:30],
)
def test_names_that_leave_no_room_for_what_controllers_add_are_found(bad: Manifest, expected: str) -> None:
    [sentence] = problems(bad)
    assert sentence.startswith(f"{bad.identity}: ")
    assert expected in sentence


def test_what_helm_3_renders_otherwise_is_told(checker: Checker, make_chart: MakeChart) -> None:
    parent = make_chart(
        "parent",
        values="child: {user: null}\n",
        dependencies=[{"name": "child", "version": "0.1.0", "repository": ""}],
    )
    text = "{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}, data: {a: %s}}"
    templates = {
        "user.yaml": text % ("user", "{{ .Values.user | default `none` | quote }}"),
        # Each render has another one, with Helm 4 too.
        "chance.yaml": text % ("chance", "{{ randAlphaNum 32 | quote }}"),
    }
    make_chart("child", values={"user": "1000"}, templates=templates, within=parent)
    told = [(each.path, each.sentence) for each in checker.check([parent]).findings if each.rule == "helm"]
    assert told == [("ConfigMap/user", "Helm 3 makes this object otherwise")]
