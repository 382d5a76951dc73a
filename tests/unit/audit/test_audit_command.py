"""`bireme audit`: what it reads, what it passes over, and how it tells what it found."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme.audit.documents import read
from bireme.audit.rules import Auditor
from bireme.cli import cli
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.helm import Render, Renderer, RenderRequest, load
from bireme.plan.instances import Instance
from tests.support import api_server
from tests.support.tiers import core

BASES: Mapping[str, Any] = yaml.safe_load((Path(__file__).parent / "bases.yaml").read_text())
TEXTS = [yaml.safe_dump_all(base["objects"]) for name, base in BASES.items() if name != "anchors"]
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: resnet}
spec:
  template:
    spec:
      restartPolicy: Never
      imagePullPolicy: Always
      containers: [{name: train, image: "train:1.4", command: [sleep, "1"]}]
"""
PLACE = "spec.template.spec.imagePullPolicy"


@pytest.fixture(scope="session")
def auditor(instances: Mapping[str, Instance]) -> Auditor:
    return Auditor(instances)


def audit(*arguments: str | Path, given: str = "") -> Result:
    return CliRunner().invoke(cli, ["audit", *map(str, arguments)], input=given, catch_exceptions=False)


def found(result: Result) -> list[tuple[str, str, int]]:
    return [(each["rule"], each["path"], each["line"]) for each in json.loads(result.stdout)["findings"]]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def test_a_folder_with_more_manifests_than_a_person_means_is_refused(tmp_path: Path) -> None:
    for number in range(5001):
        (tmp_path / f"{number}.yaml").touch()
    with pytest.raises(BiremeError, match="holds more than 5000 manifests: name a smaller folder"):
        audit(tmp_path)


# --- how it tells ---


def test_the_text_names_place_harm_fix_rule_and_source(job: Path) -> None:
    result = audit(job)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"✗ {job}:8: {PLACE}: the spec of a pod has no field imagePullPolicy: the API server drops it, or "
        "refuses the object",
        "    check the name and the level, as imagePullPolicy and resources belong to a container",
        "    unknown-pod-field, https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/",
    ]


def test_sarif_has_the_source_of_each_rule(job: Path) -> None:
    [run] = json.loads(audit(job, "-o", "sarif").stdout)["runs"]
    [rule] = run["tool"]["driver"]["rules"]
    assert rule["id"] == "unknown-pod-field"
    assert rule["helpUri"].startswith("https://kubernetes.io/")
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"] == {"startLine": 8}


@pytest.mark.parametrize(
    ("rule", "fail_on", "code"),
    [("error", "error", 1), ("error", "never", 0), ("note", "warning", 0), ("note", "note", 1)],
)
def test_the_exit_code_follows_the_severity(rule: str, fail_on: str, code: int, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB if rule == "error" else JOB.replace("      imagePullPolicy: Always\n", ""))
    (tmp_path / "notes.yaml").write_text("a: 1\n")
    assert audit(tmp_path, "--fail-on", fail_on).exit_code == code


# --- what it reads ---


def test_it_reads_stdin() -> None:
    assert found(audit("-", "-o", "json", given=JOB)) == [("unknown-pod-field", PLACE, 8)]


def test_it_reads_folders_and_the_documents_of_a_file_in_turn(tmp_path: Path) -> None:
    (tmp_path / "deep/.git").mkdir(parents=True)
    (tmp_path / "deep/jobs.yml").write_text(f"{JOB}---\n{JOB}")
    (tmp_path / "deep/.git/job.yaml").write_text(JOB)
    (tmp_path / "deep/script.py").write_text("kind = 1")
    assert [line for _, _, line in found(audit(tmp_path, "-o", "json"))] == [8, 18]


OBJECT = yaml.safe_load(JOB)


@pytest.mark.parametrize(
    ("version", "kind", "content"),
    [
        ("v1", "List", {"items": [OBJECT]}),
        ("workload.codeflare.dev/v1beta2", "AppWrapper", {"spec": {"components": [{"template": OBJECT}]}}),
    ],
)
def test_it_looks_into_objects_that_hold_others(version: str, kind: str, content: Mapping[str, Any]) -> None:
    given = yaml.safe_dump({"apiVersion": version, "kind": kind, **content})
    [(rule, path, line)] = found(audit("-", "-o", "json", given=given))
    assert (rule, path) == ("unknown-pod-field", PLACE)
    assert "imagePullPolicy" in given.splitlines()[line - 1]


def test_a_file_of_variables_fills_in_placeholders(tmp_path: Path) -> None:
    variables = tmp_path / "env"
    variables.write_text("# mine\nexport POLICY='Always'\nOTHER=1\n")
    text = JOB.replace("restartPolicy: Never", "restartPolicy: ${POLICY}")
    rules = [rule for rule, _, _ in found(audit("-", "--env-file", variables, "-o", "json", given=text))]
    assert "job-restart-policy" in rules


def test_counts_that_are_placeholders_are_not_judged(auditor: Auditor, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    text = yaml.safe_dump_all(BASES["job"]["objects"])
    for value in ("parallelism: 2", "completions: 2", "nvidia.com/gpu: 8", "memory: 900Gi"):
        assert value in text
        text = text.replace(value, f"{value.split(':')[0]}: $N")
    file.write_text(text)
    found = auditor.audit(read([str(file)], {})[0])
    assert [each.rule for each in found if each.severity != "note"] == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"kind: Job\nmetadata:\n  name: {{ .Release.Name }}\n", "it is a template"),
        (b"{{- if .Values.a }}\nkind: Job\n{{- end }}\n", "it is a template"),
        (b"apiVersion: batch/v1\nkind: Job\nspec: {template: {spec", "line 4 is not valid YAML"),
        (b"a: &a [*b]\n", "is not valid YAML"),
        (b"a: &a\n  b: *a\n", "an anchor contains itself"),
        (b"\x7fELF\xff\x00", "it is not text"),
        (b"a: 1\n" * 2**21, "it has more than 8 MiB"),
        (b"- a\n- b\n", "it holds no Kubernetes object"),
        (b"", "it holds no Kubernetes object"),
        (b"[" * 5000, "nested more than 100 deep"),
        (b"apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: a}\n", "it holds a RayJob"),
    ],
)
def test_what_is_no_manifest_is_passed_over_with_one_line(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_bytes(content)
    (tmp_path / "job.yaml").write_text(JOB)
    result = audit(tmp_path, "-o", "json")
    notes = [each for each in json.loads(result.stdout)["findings"] if each["rule"] == "passed-over"]
    assert [note["file"] for note in notes] == [str(tmp_path / "other.yaml")]
    assert why in notes[0]["sentence"]
    assert "\n" not in notes[0]["sentence"]
    assert "unknown-pod-field" in result.stdout


# --- what it must bear ---


@pytest.mark.parametrize("chart", core("torch-elastic", of=["torch-elastic", "mpi-training", "paddle"]))
def test_it_finds_nothing_wrong_in_what_the_charts_render(
    chart: str, auditor: Auditor, renderer: Renderer, paths: Paths, tmp_path: Path
) -> None:
    folder = paths.charts / chart
    files = sorted(folder.glob("ci/*-values.yaml"))
    assert files
    for values, render in zip(
        files, renderer.render_many([RenderRequest(folder, load([each])) for each in files]), strict=True
    ):
        assert isinstance(render, Render), values
        rendered = tmp_path / values.name
        rendered.write_text(yaml.safe_dump_all([each.thaw() for each in render.manifests]))
        documents, passed_over = read([str(rendered)], {})
        assert passed_over == []
        assert [str(each) for each in auditor.audit(documents) if each.is_wrong] == []


_ODD: list[Any] = [None, True, -1, 0, 2**62, 1.5, "", "$N", "é\n", [], {}, [None], {"a": 1}, "9" * 40, [[]]]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.sampled_from(TEXTS), seed=st.integers(0, 2**32))
def test_changed_manifests_are_audited_or_passed_over(
    text: str, seed: int, auditor: Auditor, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    objects = list(yaml.safe_load_all(text))
    for _ in range(chance.randint(1, 6)):
        holder: Any = chance.choice(objects)
        while isinstance(holder, dict | list) and holder:
            key = chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
            if chance.random() < 0.25 or not isinstance(holder[key], dict | list):
                holder[key] = chance.choice(_ODD)
                break
            holder = holder[key]
    changed = yaml.safe_dump_all(objects)
    if chance.random() < 0.3:
        cut = chance.randrange(len(changed))
        changed = (
            changed[:cut] + chance.choice(["", "{", "\x00", "- ", "*a", "!!python/x "]) + changed[cut + 1 :]
        )
    file = tmp_path / "job.yaml"
    file.write_text(changed)
    documents, passed_over = read([str(file)], {})
    assert all(str(each) for each in auditor.audit(documents))
    assert documents or len(passed_over) == 1


def test_the_jobs_of_a_cluster_are_read_without_what_controllers_made(tmp_path: Path) -> None:
    job = {**yaml.safe_load(JOB), "status": {"conditions": [{"type": "Suspended", "status": "True"}]}}
    controller = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "a", "controller": True}
    made = {**job, "metadata": {"name": "made", "ownerReferences": [controller]}}
    over = {
        **job,
        "metadata": {"name": "over"},
        "status": {"conditions": [{"type": "Complete", "status": "True"}]},
    }
    asked = []

    class Handler(api_server.Quiet):
        def do_GET(self) -> None:
            asked.append(self.path)
            is_jobs = self.path == "/apis/batch/v1/namespaces/vision/jobs"
            # The items of a list name neither kind nor version.
            items = [{key: each[key] for key in ("metadata", "spec", "status")} for each in (job, made, over)]
            self.answer(json.dumps({"kind": "JobList", "items": items}).encode(), 200 if is_jobs else 404)

    with api_server.serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler), tmp_path) as kubeconfig:
        result = audit("--kubeconfig", kubeconfig, "-n", "vision", "-o", "json")
    told = json.loads(result.stdout)["findings"]
    assert {each["file"] for each in told} == {"vision/Job:resnet"}
    assert (PLACE, 0) in [(each["path"], each["line"]) for each in told]
    assert "secrets" not in str(asked)
    assert audit().exit_code == audit("job.yaml", "--context", "it").exit_code == 2


@pytest.mark.whole
def test_300_files_take_few_seconds(auditor: Auditor, tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}.yaml").write_text(TEXTS[number % len(TEXTS)])
    # Of CPU, because other tests run beside it.
    began = time.process_time()
    documents, _ = read([str(tmp_path)], {})
    auditor.audit(documents)
    assert len(documents) > 300
    assert time.process_time() - began < 30
