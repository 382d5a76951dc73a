"""Rendered objects as read-only views."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest, without_state
from bireme.helm import parse
from bireme.helm.yaml import block_text

TEXT = """# a line before
---
# Source: web/templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: a
  labels: {app: web}
  annotations: {day: 2020-01-01, on: "yes"}
data:
  script: |
    one
     --- not a separator
    two
---
# Source: web/templates/empty.yaml
---
# Source: web/templates/tests/t.yaml
apiVersion: v1
kind: Pod
metadata: {name: t, namespace: sea, annotations: {helm.sh/hook: test}}
spec: {containers: []}
"""


def pod(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def test_helms_output_becomes_typed_objects_with_their_source() -> None:
    first, second = parse(TEXT)
    assert (first.kind, first.api_version, first.name, first.namespace) == ("ConfigMap", "v1", "a", None)
    assert first.source == "web/templates/a.yaml"
    assert first.labels == {"app": "web"}
    assert first["data"]["script"] == "one\n --- not a separator\ntwo\n"
    assert (first.is_hook, second.is_hook, second.namespace) == (False, True, "sea")
    assert second.identity == "Pod/t"


def test_dates_stay_strings_as_in_kubernetes() -> None:
    assert parse(TEXT)[0].annotations["day"] == "2020-01-01"


@pytest.mark.parametrize(
    ("text", "sentence"), [("# Source: a.yaml\n- 1\n", "a.yaml holds a list"), ("a: [", "not valid YAML")]
)
def test_a_document_that_is_not_an_object_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(BiremeError, match=sentence):
        parse(text)


def test_a_manifest_is_frozen_all_the_way_down_and_thaws_into_a_copy() -> None:
    manifest = Manifest(pod(containers=[{"name": "c", "env": [{"name": "A"}]}]))
    with pytest.raises(TypeError):
        manifest["spec"]["containers"][0]["env"] = []
    with pytest.raises(AttributeError):
        manifest["spec"]["containers"].append({})
    with pytest.raises(AttributeError):
        manifest.source = "elsewhere"  # type: ignore[misc]
    copy = manifest.thaw()
    copy["spec"]["containers"][0]["env"].append({"name": "B"})
    assert len(manifest["spec"]["containers"][0]["env"]) == 1
    assert manifest == Manifest(pod(containers=[{"name": "c", "env": [{"name": "A"}]}]))
    assert len({manifest, Manifest(pod(containers=[{"name": "c", "env": [{"name": "A"}]}]))}) == 1


def test_an_object_without_metadata_has_empty_names_and_labels() -> None:
    bare = Manifest({"kind": "List"})
    assert (bare.name, bare.labels, bare.annotations, bare.identity) == ("", {}, {}, "List/(no name)")


def test_what_kubernetes_alone_writes_is_no_difference() -> None:
    about = {"name": "web", "annotations": {"a": "b"}}
    # The controller adds the number some time after the Deployment is there.
    marked = {"a": "b", "deployment.kubernetes.io/revision": "1"}
    written = {"kind": "Deployment", "metadata": about, "spec": {}}
    told = {**written, "status": {}, "metadata": {**about, "uid": "1", "annotations": marked}}
    assert without_state(told) == without_state(written) == written


@pytest.mark.parametrize("text", ["one\n  two\n", "ready 🚀\nsteady\n", "a\rb", "null", "é", "x" * 3000])
def test_yaml_for_people_has_texts_in_lines_and_says_the_same(text: str) -> None:
    shared = {"script": text}
    written = block_text([{"first": shared, "second": shared}, {}])
    assert list(yaml.safe_load_all(written)) == [{"first": shared, "second": shared}, {}]
    assert "&" not in written, "nothing by reference"
    assert written.count("  script: |") == (2 if "\n" in text else 0)


def test_yaml_for_people_has_half_a_character_of_utf_16_too() -> None:
    assert block_text([{"a": "\ud83d"}]) == 'a: "\\uD83D"\n'
