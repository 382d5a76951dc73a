"""Rendering through the real Helm: cached by content, frozen, with the sentences of the chart as errors."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.helm import Renderer, RenderError, RenderRequest, sentences
from bireme.tools import Toolbox
from tests.support.templates import SEEN

MakeChart = Callable[..., Path]
HELMS = ["helm", "helm3"]
CONFIG = SEEN + '  text: {{ .Values.text | default "none" | quote }}\n'
HOOK = """apiVersion: v1
kind: Pod
metadata: {name: check, annotations: {helm.sh/hook: test}}
spec: {containers: [{name: c, image: i}]}
"""


@pytest.fixture
def chart(make_chart: MakeChart) -> Path:
    return make_chart("web", templates={"config.yaml": CONFIG, "hook.yaml": HOOK})


class CountingToolbox(Toolbox):
    """The real Helm behind a script that writes a line per run."""

    def __init__(self, paths: Paths, folder: Path) -> None:
        super().__init__(paths)
        self._log = folder / "runs"
        self._log.touch()
        self._script = folder / "counting-helm"
        self._script.write_text(f'#!/bin/sh\necho run >> {self._log}\nexec {super().path("helm")} "$@"\n')
        self._script.chmod(0o755)

    def path(self, name: str, version: str | None = None) -> Path:
        return self._script

    def ready(self, name: str, instead_of: str) -> Path | None:
        return None

    @property
    def runs(self) -> int:
        return len(self._log.read_text().splitlines())


@pytest.fixture
def counting(paths: Paths, tmp_path: Path) -> CountingToolbox:
    return CountingToolbox(paths, tmp_path)


@pytest.mark.parametrize("helm", HELMS)
def test_every_part_of_a_request_reaches_the_templates(helm: str, chart: Path, renderer: Renderer) -> None:
    request = RenderRequest(
        chart,
        {"text": "héllo"},
        release="blue",
        namespace="sea",
        kube_version="1.35.0",
        api_versions=("monitoring.coreos.com/v1",),
        is_upgrade=True,
        helm=helm,
    )
    config, hook = renderer.render(request).manifests
    assert config.thaw()["data"] == {
        "upgrade": "true",
        "kube": "v1.35.0",
        "monitored": "true",
        "text": "héllo",
    }
    assert (config.identity, config.namespace, config.source) == (
        "ConfigMap/blue",
        "sea",
        "web/templates/config.yaml",
    )
    assert (config.is_hook, hook.is_hook) == (False, True)


def test_the_environment_of_the_caller_changes_nothing(
    chart: Path, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELM_NAMESPACE", "other")
    monkeypatch.setenv("HELM_KUBEVERSION", "1.1.1")
    monkeypatch.setenv("HELM_DEBUG", "true")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert renderer.render(RenderRequest(chart)).manifests[0].namespace == "default"


def test_the_same_content_is_rendered_once_also_by_later_processes(
    chart: Path, counting: CountingToolbox, own_paths: Paths
) -> None:
    first = Renderer(counting, own_paths)
    one = first.render(RenderRequest(chart, {"text": "a"}))
    assert first.render(RenderRequest(chart, {"text": "a"})).manifests == one.manifests
    bytecode = chart / "files/__pycache__/train.cpython-311.pyc"
    bytecode.parent.mkdir(parents=True)
    bytecode.write_bytes(b"made by a Python that ran a file of the chart")
    assert (
        Renderer(counting, own_paths).render(RenderRequest(chart, {"text": "a"})).manifests == one.manifests
    )
    assert counting.runs == 1


def test_a_chart_that_renders_nothing_is_cached_too(
    make_chart: MakeChart, counting: CountingToolbox, own_paths: Paths
) -> None:
    chart = make_chart("empty", templates={"none.yaml": "{{- if false }}a: b{{ end }}"})
    for _ in range(2):
        assert Renderer(counting, own_paths).render(RenderRequest(chart)).manifests == ()
    assert counting.runs == 1


def test_all_that_the_output_depends_on_is_part_of_the_cache_key(
    chart: Path, counting: CountingToolbox, own_paths: Paths
) -> None:
    renderer, plain = Renderer(counting, own_paths), RenderRequest(chart)
    requests = [
        plain,
        replace(plain, values={"text": "b"}),
        replace(plain, release="other"),
        replace(plain, namespace="other"),
        replace(plain, kube_version="1.34.0"),
        replace(plain, api_versions=("a/v1",)),
        replace(plain, is_upgrade=True),
    ]
    for number, request in enumerate(requests, 1):
        renderer.render(request)
        assert counting.runs == number


def test_a_change_in_a_linked_dependency_is_rendered_again(
    make_chart: MakeChart, counting: CountingToolbox, own_paths: Paths
) -> None:
    library = make_chart("lib", templates={"_name.tpl": '{{ define "lib.text" }}one{{ end }}'})
    chart = make_chart(
        "web",
        templates={"c.yaml": 'apiVersion: v1\nkind: C\nmetadata: {name: {{ include "lib.text" . }}}\n'},
        dependencies=[{"name": "lib", "version": "0.1.0", "repository": "file://../lib"}],
    )
    (chart / "charts").mkdir()
    (chart / "charts" / "lib").symlink_to(library)
    assert Renderer(counting, own_paths).render(RenderRequest(chart)).manifests[0].name == "one"
    (library / "templates" / "_name.tpl").write_text('{{ define "lib.text" }}two{{ end }}')
    assert Renderer(counting, own_paths).render(RenderRequest(chart)).manifests[0].name == "two"


def test_a_truncated_cache_file_is_rendered_again(
    chart: Path, counting: CountingToolbox, own_paths: Paths
) -> None:
    Renderer(counting, own_paths).render(RenderRequest(chart))
    for file in own_paths.cache.rglob("*.json"):
        file.write_text(file.read_text()[:20])
    assert len(Renderer(counting, own_paths).render(RenderRequest(chart)).manifests) == 2
    assert counting.runs == 2


def test_concurrent_renderers_leave_one_complete_result(
    chart: Path, toolbox: Toolbox, own_paths: Paths
) -> None:
    def render(_: int) -> int:
        return len(Renderer(toolbox, own_paths).render(RenderRequest(chart)).manifests)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(render, range(8))) == {2}
    files = [file for file in own_paths.cache.rglob("*") if file.is_file()]
    assert [file.suffix for file in files] == [".json"]
    assert json.loads(files[0].read_text())["manifests"]


def test_a_large_object_that_renders_have_in_common_is_on_the_disk_once(
    make_chart: MakeChart, counting: CountingToolbox, own_paths: Paths
) -> None:
    large = 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: code}\ndata: {code: {{ repeat 9000 "x" }}}\n'
    chart = make_chart("web", templates={"c.yaml": CONFIG, "large.yaml": large})
    requests = [RenderRequest(chart, {"text": text}) for text in "abcdef"]
    made = Renderer(counting, own_paths).render_many(requests)
    assert Renderer(counting, own_paths).render_many(requests) == made
    files = [file for file in own_paths.cache.rglob("*.json") if "xxx" in file.read_text()]
    assert (len(files), counting.runs) == (1, 6)
    files[0].unlink()
    assert Renderer(counting, own_paths).render_many(requests) == made
    assert counting.runs > 6
    assert files[0].is_file()


def test_render_many_keeps_the_order_and_renders_equal_requests_once(
    make_chart: MakeChart, counting: CountingToolbox, own_paths: Paths
) -> None:
    chart = make_chart(
        "web", templates={"c.yaml": CONFIG + '{{ if eq .Values.text "bad" }}{{ fail "text: no" }}{{ end }}'}
    )
    texts = ["a", "b", "bad", "a", "bad"]
    renderer = Renderer(counting, own_paths)
    results = renderer.render_many([RenderRequest(chart, {"text": text}) for text in texts])
    shown = [str(r) if isinstance(r, RenderError) else r.manifests[0]["data"]["text"] for r in results]
    assert shown == ["a", "b", "text: no", "a", "text: no"]
    assert counting.runs == 3


@pytest.mark.parametrize("helm", HELMS)
def test_a_refusal_is_the_sentence_of_the_chart_also_from_the_cache(
    helm: str, make_chart: MakeChart, renderer: Renderer
) -> None:
    rule = (
        '{{ define "r" }}{{ fail "workers: 9 is more than 8.\\nSet it to 8." }}{{ end }}{{ include "r" . }}'
    )
    chart = make_chart("web", templates={"validate.yaml": rule})
    for _ in range(2):
        with pytest.raises(RenderError) as raised:
            renderer.render(RenderRequest(chart, helm=helm))
        assert str(raised.value) == "workers: 9 is more than 8.\nSet it to 8."
        assert "web/templates/validate.yaml" in raised.value.raw


@pytest.mark.parametrize("helm", HELMS)
def test_a_refusal_by_a_schema_names_the_chart_and_the_key(
    helm: str, make_chart: MakeChart, renderer: Renderer
) -> None:
    schema = {"properties": {"shm": {"properties": {"size": {"type": "string"}}}}}
    chart = make_chart("web", schema=schema, templates={"c.yaml": CONFIG})
    with pytest.raises(RenderError) as raised:
        renderer.render(RenderRequest(chart, {"shm": {"size": 5}}, helm=helm))
    assert str(raised.value) == "web: shm.size: got number, want string"


@pytest.mark.parametrize("helm", HELMS)
def test_the_note_of_helm_about_links_is_not_part_of_an_error(
    helm: str, make_chart: MakeChart, bireme_paths: Paths, toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Helm's command writes the note, its library does not.
    monkeypatch.setattr(Toolbox, "ready", lambda *_, **__: None)
    library = make_chart("lib")
    chart = make_chart("web", templates={"validate.yaml": '{{ fail "no" }}'})
    (chart / "charts").mkdir()
    (chart / "charts" / "lib").symlink_to(library)
    with pytest.raises(RenderError, match=r"^no$") as raised:
        Renderer(toolbox, bireme_paths).render(RenderRequest(chart, helm=helm))
    assert "symbolic link" in raised.value.raw


def test_a_dependency_as_a_link_and_as_a_package_is_refused(
    make_chart: MakeChart, renderer: Renderer
) -> None:
    chart = make_chart("web")
    make_chart("common", within=chart)
    (chart / "charts" / "common-0.1.0.tgz").touch()
    with pytest.raises(
        BiremeError, match=r"holds common twice, as common and as common-0\.1\.0\.tgz: remove"
    ):
        renderer.render(RenderRequest(chart))


def test_a_link_to_its_own_chart_is_refused(make_chart: MakeChart, renderer: Renderer) -> None:
    chart = make_chart("web")
    (chart / "charts").mkdir()
    (chart / "charts" / "web").symlink_to(chart)
    with pytest.raises(BiremeError, match="links back to a folder it lies in"):
        renderer.render(RenderRequest(chart))


def test_the_error_for_a_folder_that_is_no_chart_names_it(tmp_path: Path, renderer: Renderer) -> None:
    with pytest.raises(BiremeError, match=r"is not a chart: it has no Chart\.yaml"):
        renderer.render(RenderRequest(tmp_path))


def test_a_killed_helm_is_not_cached_as_a_refusal(chart: Path, own_paths: Paths, tmp_path: Path) -> None:
    class Killed(Toolbox):
        def path(self, name: str, version: str | None = None) -> Path:
            script = tmp_path / "helm"
            script.write_text("#!/bin/sh\nkill -9 $$\n")
            script.chmod(0o755)
            return script

    with pytest.raises(BiremeError, match="stopped by signal 9") as raised:
        Renderer(Killed(own_paths), own_paths).render(RenderRequest(chart))
    assert not isinstance(raised.value, RenderError)
    assert not list(own_paths.cache.rglob("*.json"))


def test_a_renderer_leaves_nothing_but_its_cache(
    chart: Path, toolbox: Toolbox, own_paths: Paths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    Renderer(toolbox, own_paths).render(RenderRequest(chart))
    assert not list(temporary.iterdir())


SCHEMA_ERROR = "Error: values don't meet the specifications of the schema(s) in the following chart(s):\n"


@pytest.mark.parametrize(
    ("stderr", "sentence"),
    [
        ("Error: execution error at (x/templates/validate.yaml:3:4): workers: no\n", "workers: no"),
        ("level=WARN msg=odd\nError: INSTALLATION FAILED: execution error at (a:1:2): no\n", "no"),
        (
            "Error: YAML parse error on a.yaml: bad\n\nUse --debug flag to render out invalid YAML\n",
            "YAML parse error on a.yaml: bad",
        ),
        ("", "Helm failed without a message"),
        (f"{SCHEMA_ERROR}web:\n- at '/image/tag': 'not' failed\n", "web: image.tag: 'not' failed"),
        (f"{SCHEMA_ERROR}web:\n- at '/a': 'allOf' failed\n  - at '/a/b': no\n", "web: a.b: no"),
    ],
)
def test_helms_prefixes_are_stripped(stderr: str, sentence: str) -> None:
    assert sentences(stderr) == sentence
