"""A process of Helm 4's library renders what `helm template` does, byte for byte, and fails as it fails."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bireme.core.paths import Paths
from bireme.helm import Renderer, RenderError, RenderRequest, SetFlags
from bireme.helm.process import NoAnswer, RenderProcess
from bireme.helm.values import read_file
from bireme.tools import Toolbox
from tests.support.templates import SEEN
from tests.support.tiers import core

MakeChart = Callable[..., Path]
CHARTS = Paths.discover().charts
CI_FILES = sorted(
    str(file.relative_to(CHARTS)).removesuffix("-values.yaml") for file in CHARTS.glob("*/ci/*-values.yaml")
)


class WithoutProcess(Toolbox):
    """Has Helm's commands alone, as a machine without Go has."""

    def ready(self, name: str, instead_of: str) -> Path | None:
        return None


@pytest.fixture(scope="module")
def in_process(bireme_paths: Paths, toolbox: Toolbox) -> Renderer:
    toolbox.ensure(["helm-render"])
    return Renderer(toolbox, bireme_paths, keeps=False)


@pytest.fixture(scope="module")
def commands(bireme_paths: Paths) -> Renderer:
    return Renderer(WithoutProcess(bireme_paths), bireme_paths, keeps=False)


def said(renderer: Renderer, request: RenderRequest) -> tuple[str, str]:
    """What is rendered, and what Helm says if it fails."""
    try:
        return renderer.text(request), ""
    except RenderError as error:
        return "", error.raw


def same(in_process: Renderer, commands: Renderer, request: RenderRequest) -> tuple[str, str]:
    assert in_process.render_binary
    assert not commands.render_binary
    here, there = said(in_process, request), said(commands, request)
    assert here == there
    # What the first answer has left in the process changes nothing.
    assert said(in_process, request) == there
    return here


@pytest.mark.parametrize("file", core("autoscaler/ci/default", "mpijob/ci/default", of=CI_FILES))
def test_each_ci_file_renders_alike(in_process: Renderer, commands: Renderer, file: str) -> None:
    values = read_file(CHARTS / f"{file}-values.yaml")
    same(in_process, commands, RenderRequest(CHARTS / file.partition("/")[0], values))


HOOK = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: last, annotations: {helm.sh/hook: test}}\n"
ABSENT = [{"name": "absent", "version": "1.0.0", "repository": "oci://no"}]
OF_EACH_KIND = SEEN + "  values: {{ .Values | toJson | quote }}\n"
REQUESTS: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "settings": {
        "settings": SetFlags(sets=("a.b=1,c={x,y}",), strings=("d=1",), jsons=('e={"f":[1,2.50]}',))
    },
    "an upgrade": {"is_upgrade": True, "release": "other", "namespace": "team"},
    "another Kubernetes": {"kube_version": "1.31.2", "api_versions": ("monitoring.coreos.com/v1",)},
    "numbers and words": {
        "values": {"n": 12345678901234567, "y": "yes", "u": "é☃\U0001f600", "nothing": None}
    },
    "no version of Kubernetes": {"kube_version": "new"},
    "a setting that is none": {"settings": SetFlags(jsons=("a={",))},
    "a setting on a value": {"settings": SetFlags(sets=("a=1", "a.b=2"))},
    "a schema refuses": {"values": {"size": "large"}},
    "a schema is passed over": {"values": {"size": "large"}, "skips_schema": True},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_each_kind_of_request_is_answered_alike(
    in_process: Renderer, commands: Renderer, make_chart: MakeChart, name: str
) -> None:
    schema = {"properties": {"size": {"type": "integer"}}}
    chart = make_chart("web", templates={"config.yaml": OF_EACH_KIND}, schema=schema)
    same(in_process, commands, RenderRequest(chart, **REQUESTS[name]))


@pytest.mark.parametrize(
    "template",
    [
        '{{ fail "no" }}',
        '{{ required "give a name" .Values.name }}',
        "{{ if }}",
        '{{ include "nothing" . }}',
        "a: [",
        "kind: ConfigMap\n",
        "{{/* nothing */}}",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x, annotations: {helm.sh/hook: nothing}}\n",
    ],
)
def test_each_fault_of_a_chart_has_the_same_sentence(
    in_process: Renderer, commands: Renderer, make_chart: MakeChart, template: str
) -> None:
    chart = make_chart("web", templates={"fault.yaml": template})
    same(in_process, commands, RenderRequest(chart))


KINDS = ("Job", "Widget", "ConfigMap", "Namespace", "Gadget", "Service", "Widget", "Job", "Secret", "Pod")
OBJECT = "apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}, annotations: {{{notes}}}}}\n"


def test_objects_and_hooks_of_many_files_come_in_the_order_of_helm(
    in_process: Renderer, commands: Renderer, make_chart: MakeChart
) -> None:
    templates = {"NOTES.txt": "none", "_one.tpl": "", "empty.yaml": "\n \n", "twice.yaml": "---\n---  \n"}
    for number, notes in enumerate(("", "helm.sh/hook: test", "helm.sh/hook: nothing", "a: b", "")):
        objects = (OBJECT.format(kind=kind, name=f"n{at}", notes=notes) for at, kind in enumerate(KINDS))
        templates[f"{number}.yaml"] = "---\n".join(objects) + " \n" * number
    text, _ = same(in_process, commands, RenderRequest(make_chart("web", templates=templates)))
    assert text.count("kind: Widget") == 8


def test_conditions_aliases_and_schemas_of_dependencies_count_alike(
    in_process: Renderer, commands: Renderer, make_chart: MakeChart
) -> None:
    web = make_chart(
        "web",
        templates={"config.yaml": OF_EACH_KIND},
        dependencies=[
            {"name": "disk", "version": "0.1.0", "alias": "first", "condition": "first.enabled"},
            {"name": "disk", "version": "0.1.0", "condition": "disk.enabled", "import-values": ["data"]},
        ],
    )
    disk = make_chart(
        "disk",
        values={"size": 1, "exports": {"data": {"imported": True}}},
        templates={"disk.yaml": SEEN.replace("name:", "name: disk-") + "  v: {{ .Values | toJson | quote }}"},
        schema={"properties": {"size": {"type": "integer"}}},
    )
    (web / "charts").mkdir()
    disk.rename(web / "charts" / "disk")
    chosen: list[Mapping[str, Any]] = [
        {"first": {"enabled": True, "size": 2}},
        {"first": {"enabled": False}, "disk": {"enabled": True, "size": 3}},
        {"first": {"size": "large"}},
        {"disk": 1},
        {"disk": None},
    ]
    for values in [*chosen, *chosen]:
        same(in_process, commands, RenderRequest(web, values))


def test_a_large_object_that_a_process_has_told_before_is_whole(
    in_process: Renderer, commands: Renderer, make_chart: MakeChart
) -> None:
    large = OF_EACH_KIND + '  text: {{ repeat 9000 "é\\n" | quote }}\n'
    chart = make_chart("web", templates={"large.yaml": large, "large-hook.yaml": large + HOOK})
    for release in ("one", "other", "one"):
        text, _ = same(in_process, commands, RenderRequest(chart, release=release))
        assert text.count("\\n") == 18_000


@pytest.mark.parametrize(
    "more",
    [
        {"type": "library"},
        {"dependencies": ABSENT},
        {"dependencies": ABSENT, "deprecated": True},
    ],
)
def test_what_is_wrong_with_a_chart_as_a_whole_has_the_same_sentence(
    in_process: Renderer, commands: Renderer, make_chart: MakeChart, more: Mapping[str, Any]
) -> None:
    chart = make_chart("web", templates={"config.yaml": OF_EACH_KIND})
    about = json.loads((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(json.dumps(about | more))
    text, error = same(in_process, commands, RenderRequest(chart))
    assert not text
    assert error


def test_a_hundred_renders_at_a_time_get_their_own_answers(
    in_process: Renderer, make_chart: MakeChart
) -> None:
    chart = make_chart("web", templates={"config.yaml": OF_EACH_KIND})
    requests = [RenderRequest(chart, {"number": number}, release=f"r{number}") for number in range(100)]
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(in_process.text, requests))
    for number, text in enumerate(texts):
        assert f"name: r{number}," in text


def test_a_killed_process_leaves_the_render_to_the_command_and_the_next_to_a_new_one(
    bireme_paths: Paths, toolbox: Toolbox, make_chart: MakeChart, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[RenderProcess] = []

    class Noted(RenderProcess):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            started.append(self)

    monkeypatch.setattr("bireme.helm.render.RenderProcess", Noted)
    renderer = Renderer(toolbox, bireme_paths, keeps=False)
    request = RenderRequest(make_chart("web", templates={"config.yaml": OF_EACH_KIND}))
    text = renderer.text(request)
    os.kill(started[0].pid, signal.SIGKILL)
    assert [renderer.text(request) for _ in range(3)] == [text] * 3
    assert len(started) == 2


def test_a_process_killed_within_an_answer_leaves_no_render_waiting(tmp_path: Path) -> None:
    half = tmp_path / "half"
    half.write_text('#!/bin/sh\nread _\nprintf \'{"id": 0, "te\'\nkill -9 $$\n')
    half.chmod(0o755)
    process = RenderProcess(half, {"PATH": os.environ["PATH"]})
    for _ in range(2):
        with pytest.raises(NoAnswer):
            process.answer({}, chart="web")


def test_without_room_for_values_the_command_renders(
    bireme_paths: Paths, toolbox: Toolbox, make_chart: MakeChart, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    request = RenderRequest(make_chart("web", templates={"config.yaml": OF_EACH_KIND}))
    renderer = Renderer(toolbox, bireme_paths, keeps=False)
    text = renderer.text(request)
    monkeypatch.setattr("bireme.helm.process.tempfile.NamedTemporaryFile", no_room)
    assert renderer.text(request) == text


def test_a_process_ends_with_the_last_reference_to_it(toolbox: Toolbox) -> None:
    process = RenderProcess(toolbox.path("helm-render"), {})
    pid = process.pid
    os.kill(pid, 0)
    del process
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
