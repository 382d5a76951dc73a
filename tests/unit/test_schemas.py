"""Schemas of values: bundled with the comments of values.yaml, and problems as users write their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.helm import Renderer, RenderRequest
from bireme.schemas.bundle import BUNDLE, bundled, drift, write
from bireme.schemas.problems import problems

MakeChart = Callable[..., Path]

VALUES = """# -- Number of workers
workers: 1
shm:
  # -- (string) Size of /dev/shm;
  # over two lines
  # @default -- half of the memory
  size: ""
# A remark, then the description:
# -- The image
image:
  # -- Its tag
  tag: "1"
other:
  tag: "1"
# -- Keys of the user
labels: {}
"""
DEFAULTS = yaml.safe_load(VALUES)
COMMON = {
    "$defs": {
        "image": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"tag": {"$ref": "#/$defs/text"}},
        },
        "text": {"type": "string", "minLength": 1},
        "unused": {"type": "null"},
    }
}
SOURCE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "workers": {"$ref": "#/$defs/many"},
        "shm": {"type": "object", "properties": {"size": {"type": "string"}}},
        "image": {"$ref": "common.schema.json#/$defs/image"},
        "other": {"$ref": "common.schema.json#/$defs/image"},
        "labels": {"type": "object"},
    },
    "$defs": {"many": {"type": "integer", "minimum": 1}},
}


@pytest.fixture
def project(tmp_path: Path) -> Paths:
    chart = tmp_path / "charts" / "web"
    chart.mkdir(parents=True)
    (chart / "Chart.yaml").write_text("{apiVersion: v2, name: web, version: 0.1.0}")
    (chart / "values.yaml").write_text(VALUES)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "common.schema.json").write_text(json.dumps(COMMON))
    (tmp_path / "schemas" / "web.schema.json").write_text(json.dumps(SOURCE))
    (tmp_path / "schemas" / "plan.schema.json").write_text("{}")
    return Paths(tmp_path, tmp_path / "cache", tmp_path / "state")


def change(project: Paths, edit: Callable[[dict[str, Any]], None]) -> None:
    file = project.schemas / "web.schema.json"
    source = json.loads(file.read_text())
    edit(source)
    file.write_text(json.dumps(source))


def bundle(project: Paths) -> dict[str, Any]:
    [(file, text)] = bundled(project).items()
    assert file == project.charts / "web" / "values.schema.json"
    found: dict[str, Any] = json.loads(text)
    return found


# --- bundling ---


def test_a_bundle_has_the_comments_of_values_yaml_as_descriptions(project: Paths) -> None:
    properties = bundle(project)["properties"]
    assert properties["workers"] == {"description": "Number of workers", "$ref": "#/$defs/many"}
    assert properties["shm"]["properties"]["size"]["description"] == "Size of /dev/shm; over two lines"
    assert properties["image"]["description"] == "The image"
    assert properties["image"]["properties"]["tag"]["description"] == "Its tag"
    assert properties["other"] == {"$ref": "#/$defs/image"}


def test_a_bundle_has_all_the_definitions_that_it_uses_and_no_others(project: Paths) -> None:
    schema = bundle(project)
    assert list(schema["$defs"]) == ["image", "many", "text"]
    assert "common.schema.json" not in json.dumps(schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert valid(DEFAULTS | {"other": {"tag": "1"}, "workers": 2, "image": {"tag": "a"}})
    assert not valid(DEFAULTS | {"other": {"tag": ""}})
    assert not valid(DEFAULTS | {"image": {"tag": ""}})


def test_integers_have_a_bound_of_their_own_or_that_of_kubernetes(project: Paths) -> None:
    largest = {"type": ["integer", "null"], "maximum": 2**32}
    change(project, lambda source: source["properties"].update(labels=largest))
    schema = bundle(project)
    assert schema["$defs"]["many"]["maximum"] == 2**31 - 1
    assert schema["properties"]["labels"]["maximum"] == 2**32


@pytest.mark.parametrize("key", ["workers", "shm", "image", "labels"])
def test_a_key_with_a_default_cannot_be_taken_away(project: Paths, key: str) -> None:
    valid = jsonschema.Draft202012Validator(bundle(project)).is_valid
    assert valid(DEFAULTS)
    assert not valid({name: value for name, value in DEFAULTS.items() if name != key})


def test_a_key_that_may_be_null_can_be_taken_away(project: Paths) -> None:
    change(project, lambda source: source["properties"].update(workers={"type": ["integer", "null"]}))
    valid = jsonschema.Draft202012Validator(bundle(project)).is_valid
    assert valid({name: value for name, value in DEFAULTS.items() if name != "workers"})


def test_a_second_bundling_writes_nothing_and_drift_names_the_file(project: Paths) -> None:
    file = project.charts / "web" / "values.schema.json"
    assert drift(project) == [project.charts / "web" / BUNDLE]
    assert write(project) == [file]
    assert (write(project), drift(project)) == ([], [])
    (project.charts / "web" / "values.yaml").write_text(VALUES.replace("Number of", "How many"))
    assert len(drift(project)) == 1


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("#/$defs/nothing", r"\$defs/nothing, which neither it nor common.schema.json defines"),
        ("https://example.com/x.json", r"leads out of the bundle"),
    ],
)
def test_a_reference_to_a_missing_definition_is_refused(
    reference: str, sentence: str, project: Paths
) -> None:
    change(project, lambda source: source["properties"].update(workers={"$ref": reference}))
    with pytest.raises(BiremeError, match=sentence):
        bundled(project)


def test_one_name_for_two_definitions_is_refused(project: Paths) -> None:
    change(project, lambda source: source["$defs"].update(text={}))
    with pytest.raises(BiremeError, match=r"\$defs/text is in common.schema.json too"):
        bundled(project)


def test_the_error_for_a_source_that_is_not_json_names_it(project: Paths) -> None:
    (project.schemas / "web.schema.json").write_text("{")
    with pytest.raises(BiremeError, match=r"web\.schema\.json is not valid JSON"):
        bundled(project)


def extend(project: Paths, definitions: dict[str, Any], base: str) -> None:
    file = project.schemas / "common.schema.json"
    file.write_text(json.dumps({"$defs": {**COMMON["$defs"], **definitions}}))
    change(project, lambda source: source.update(extends=f"common.schema.json#/$defs/{base}"))


def test_a_source_has_the_properties_that_it_extends_and_its_own_win(project: Paths) -> None:
    extend(
        project,
        {
            "chart": {"additionalProperties": False, "properties": {"enabled": {"type": "boolean"}}},
            "job": {
                "extends": "#/$defs/chart",
                "properties": {"workers": {"type": "null"}, "other": {"$ref": "#/$defs/text"}},
            },
        },
        "job",
    )
    change(project, lambda source: source["properties"].pop("other"))
    schema = bundle(project)
    assert schema["properties"]["workers"]["$ref"] == "#/$defs/many"
    assert schema["properties"]["other"] == {"$ref": "#/$defs/text"}
    assert list(schema["properties"]) == ["workers", "shm", "image", "labels", "enabled", "other"]
    assert (schema["additionalProperties"], "extends" in schema) == (False, False)


# --- problems ---

RULES: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "workers": {"type": "integer", "minimum": 1, "maximum": 128},
        "efa": {"anyOf": [{"type": ["integer", "null"]}, {"const": "all"}]},
        "backend": {"enum": ["etcd", "c10d"]},
        "shm": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"size": {"$ref": "#/$defs/memory"}},
        },
        "image": {
            "type": "object",
            "required": ["repository"],
            "properties": {
                "repository": {"type": "string", "minLength": 1},
                "tag": {"not": {"const": "latest"}},
            },
        },
        "claims": {
            "type": "array",
            "uniqueItems": True,
            "maxItems": 2,
            "items": {
                "type": "object",
                "required": ["mountPath"],
                "additionalProperties": False,
                "properties": {"mountPath": {"type": "string", "maxLength": 5}},
            },
        },
        "store": {
            "oneOf": [
                {"type": "string"},
                {"type": "object", "properties": {"url": {"type": "string"}}, "additionalProperties": False},
            ]
        },
        "odd": {"propertyNames": {"pattern": "^[a-z]+$"}, "type": "object"},
        "labels": {"type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": False},
        "sub": {"type": "object"},
    },
    "$defs": {"memory": {"type": "string", "pattern": "^[0-9]+Gi$", "description": "Memory, like 5Gi"}},
}


@pytest.fixture
def chart(make_chart: MakeChart) -> Path:
    chart = make_chart(
        "web",
        values={"workers": 1, "image": {"repository": "r"}},
        schema=RULES,
        dependencies=[{"name": "sub", "version": "0.1.0", "condition": "sub.on"}],
    )
    make_chart("sub", schema={"properties": {"size": {"type": "integer"}}}, within=chart)
    return chart


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"worker": 3}, "`worker` is not a value of web: did you mean `workers`?"),
        ({"shm": {"colour": 1}}, "`shm.colour` is not a value of web: it takes `size`"),
        ({"repository": "r"}, "`repository` is not a value of web: did you mean `image.repository`?"),
        ({"replicas": 3}, "`replicas` is not a value of web: here it is `workers`"),
        ({"runPolicy": {}}, "`runPolicy` is not a value of web: docs/coming-from.md says what its fields"),
        (
            {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {}, "spec": {}},
            'this is a manifest of kind "PyTorchJob", not values of web: docs/coming-from.md says what',
        ),
        ({"workers": "3"}, '`workers` is "3", it must be a whole number'),
        ({"workers": True}, "`workers` is true, it must be a whole number"),
        ({"workers": 0}, "`workers` is 0, it must be at least 1"),
        ({"workers": 200}, "`workers` is 200, it must be at most 128"),
        ({"efa": "some"}, '`efa` is "some", it must be a whole number or null or "all"'),
        ({"backend": "zk"}, '`backend` is "zk", it must be one of "etcd", "c10d"'),
        ({"shm": {"size": "5GB"}}, '`shm.size` is "5GB", it must match ^[0-9]+Gi$ (Memory, like 5Gi)'),
        ({"image": "a/b:1"}, '`image` is "a/b:1", it must be a mapping: --image takes it as one text'),
        ({"image": {"repository": ""}}, '`image.repository` is "", it must not be empty'),
        ({"image": {"repository": None}}, "`image.repository` is missing: web needs it"),
        ({"image": {"tag": "latest"}}, '`image.tag` is "latest", it must be anything but "latest"'),
        ({"claims": [{"mountPath": "/a"}, {}]}, "`claims[1].mountPath` is missing: web needs it"),
        (
            {"claims": [{"mountPath": "/too-long"}]},
            '`claims[0].mountPath` is "/too-long", it must have at most 5 characters',
        ),
        ({"claims": [{"mountPath": "/a"}] * 2}, "it must not hold the same item twice"),
        ({"store": {"ulr": "x"}}, "`store.ulr` is not a value of web: did you mean `store.url`?"),
        ({"odd": {"A": 1}}, 'a key of `odd` is "A", it must match ^[a-z]+$'),
        ({"sub": {"size": "big"}}, '`sub.size` is "big", it must be a whole number'),
    ],
    ids=lambda case: json.dumps(case)[:40] if isinstance(case, dict) else "",
)
def test_a_problem_names_the_value_as_users_write_it(
    given: dict[str, Any], sentence: str, chart: Path, renderer: Renderer
) -> None:
    [problem] = problems(renderer, RenderRequest(chart, given))
    assert sentence in str(problem)
    assert problem.path in problem.sentence


def test_valid_values_have_no_problems_and_each_mistake_has_one(chart: Path, renderer: Renderer) -> None:
    assert problems(renderer, RenderRequest(chart, {"workers": 128, "efa": None, "store": "s"})) == []
    bad = RenderRequest(chart, {"workers": "x", "shm": {"sise": 1}, "efa": "no"})
    assert len(problems(renderer, bad)) == 3


def test_a_disabled_dependency_is_not_checked(chart: Path, renderer: Renderer) -> None:
    assert problems(renderer, RenderRequest(chart, {"sub": {"size": "big", "on": False}})) == []


def test_the_error_for_an_invalid_schema_names_it(make_chart: MakeChart, renderer: Renderer) -> None:
    chart = make_chart("web", schema={"type": "something"})
    with pytest.raises(BiremeError, match=r"web/values\.schema\.json is not a JSON Schema"):
        problems(renderer, RenderRequest(chart))


def test_a_pattern_that_only_helm_knows_is_a_sentence(make_chart: MakeChart, renderer: Renderer) -> None:
    chart = make_chart("web", {"a": "x"}, schema={"properties": {"a": {"pattern": r"^\p{L}$"}}})
    with pytest.raises(BiremeError, match=r"is not a JSON Schema: .* is not a 'regex'"):
        problems(renderer, RenderRequest(chart))


# --- the project's own charts ---


def test_every_chart_schema_follows_from_its_source(paths: Paths) -> None:
    assert drift(paths) == []
