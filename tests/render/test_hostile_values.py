"""A value never leaves its field: it arrives as it is, or is refused with a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bireme.helm import Renderer, RenderError
from bireme.testing.pytest_plugin import Request

BROKEN = (
    "nil pointer",
    "error converting YAML",
    "YAML parse error",
    "can't evaluate",
    "executing ",
    "reflect:",
)


def refusal(renderer: Renderer, request_for: Request, chart: str, **options: Any) -> str:
    with pytest.raises(RenderError) as refused:
        renderer.render(request_for(chart, **options))
    sentence = str(refused.value)
    assert not [words for words in BROKEN if words in sentence], sentence
    return sentence


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for below in value.values():
            yield from leaves(below)
    elif isinstance(value, list):
        for below in value:
            yield from leaves(below)
    else:
        yield value


@pytest.mark.parametrize("registry", ["zq9; x", "zq9 #", "!tag", "&a", "zq9:", "- a", "{a: b}", "zq9\nb"])
@pytest.mark.parametrize("chart", ["torch-elastic", "etcd", "efs"])
def test_a_registry_that_is_none_is_refused(
    renderer: Renderer, request_for: Request, chart: str, registry: str
) -> None:
    key = "test" if chart == "efs" else None
    image = {"image": {"registry": registry}}
    values = {key: image} if key else image
    assert "registry" in refusal(renderer, request_for, chart, values=values)


@pytest.mark.parametrize("name", ["true", "010", "1e3", "null", "0x1f", "2001-01-01"])
def test_a_name_that_looks_like_something_else_stays_text(
    renderer: Renderer, request_for: Request, name: str
) -> None:
    values = {
        "imagePullSecrets": [name],
        "queueName": name,
        "priorityClassName": name,
        "serviceAccount": {"name": name},
        "claims": [{"claimName": name, "mountPath": "/data", "subPath": name}],
        "podLabels": {"team": name},
        "staging": {"claimName": name, "size": "1Gi"},
        "tensorboard": {"enabled": True, "logDir": "/data"},
        "image": {"tag": name},
    }
    found = renderer.render(
        request_for("torch-elastic", instance="p4d.24xlarge", values=values, release=name, namespace=name)
    )
    for manifest in found.manifests:
        metadata = manifest.thaw()["metadata"]
        assert metadata["namespace"] == name
        assert isinstance(metadata["name"], str)
        assert all(isinstance(each, str) for each in leaves(metadata.get("labels", {})))
        assert metadata["labels"]["app.kubernetes.io/instance"] == name
    (job,) = [each.thaw() for each in found.manifests if each.kind == "Job" and not each.is_hook]
    pod = job["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": name}]
    assert (pod["priorityClassName"], pod["serviceAccountName"]) == (name, name)
    (claim,) = [each for each in pod["volumes"] if each["name"] == "claim-0"]
    assert claim["persistentVolumeClaim"]["claimName"] == name


@pytest.mark.parametrize(
    ("chart", "key"),
    [
        ("efs", "test"),
        ("torch-elastic", "securityContext"),
        ("torch-elastic", "podSecurityContext"),
        ("torch-elastic", "staging"),
        ("torch-elastic", "image"),
        ("torch-elastic", "rendezvous.auth"),
        ("mpi-training", "ssh"),
        ("paddle", "pservers"),
        ("etcd", "persistence"),
        ("fsx", "static"),
        ("dataset", "claim"),
    ],
)
def test_a_null_does_not_take_a_default_away(
    renderer: Renderer, request_for: Request, chart: str, key: str
) -> None:
    assert key.rpartition(".")[2] in refusal(renderer, request_for, chart, sets=[f"{key}=null"])


@pytest.mark.parametrize("file", ["010", "true", "zq9 #", "&zq9", "[zq9"])
@pytest.mark.parametrize("place", [{"claimName": "backups"}, {"url": "s3://bucket/backups"}])
def test_a_snapshot_keeps_its_name(
    renderer: Renderer, request_for: Request, place: dict[str, str], file: str
) -> None:
    restore = {"enabled": True, "file": file, **place}
    found = renderer.render(request_for("etcd", values={"restore": restore}))
    (members,) = [each.thaw() for each in found.manifests if each.kind == "StatefulSet"]
    commands = {
        each["name"]: each["command"] for each in members["spec"]["template"]["spec"]["initContainers"]
    }
    assert commands["fetch"][-1] == file
    assert f"/snapshots/{file}" in commands["restore"]


@pytest.mark.parametrize("item", [{}, {"kind": "ConfigMap"}, "just words", "a: b", "[1, 2]"])
@pytest.mark.parametrize("chart", ["torch-elastic", "etcd"])
def test_an_extra_object_that_is_none_is_refused(
    renderer: Renderer, request_for: Request, chart: str, item: Any
) -> None:
    sentence = refusal(renderer, request_for, chart, values={"extraObjects": [item]})
    assert "extraObjects" in sentence


def test_extra_objects_may_be_text_with_several_documents(renderer: Renderer, request_for: Request) -> None:
    config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}-%s'}\n"
    text = "---\n".join(config % name for name in "ab")
    found = renderer.render(request_for("torch-elastic", values={"extraObjects": [text]}))
    names = {each.name for each in found.manifests if each.kind == "ConfigMap"}
    assert {"release-a", "release-b"} <= names


@pytest.mark.parametrize("character", ["\x01", "\x08", "\x1b", "\x7f", "\x85", "\x9b"])
@pytest.mark.parametrize("helm", ["helm", "helm3"])
def test_a_control_character_is_refused(
    renderer: Renderer, request_for: Request, character: str, helm: str
) -> None:
    values = {"podAnnotations": {"note": f"a{character}b"}, "script": f"print('a{character}b')"}
    sentence = refusal(renderer, request_for, "torch-elastic", values=values, helm=helm)
    assert sentence.splitlines() == [
        f"{key}: it has a control character, which YAML would change; leave it out"
        for key in ("podAnnotations", "script")
    ]


@pytest.mark.parametrize("character", ["\x1b", "\x7f"])
def test_a_control_character_in_a_script_that_prepares_a_dataset_is_refused(
    renderer: Renderer, request_for: Request, character: str
) -> None:
    values = {"sources": [{"url": "s3://b/data"}], "claim": {"name": "fsx-pvc", "path": "data"}}
    sentence = refusal(renderer, request_for, "dataset", values={**values, "prepare": {"script": character}})
    assert sentence == "prepare: it has a control character, which YAML would change; leave it out"


def test_text_that_spells_a_control_character_stays(renderer: Renderer, request_for: Request) -> None:
    script = "print('\\u001b[1m', '\\\\b', '\\x85')\n\tpass\n"
    found = renderer.render(request_for("torch-elastic", values={"script": script}))
    assert script.strip() in [
        text.strip() for each in found.manifests if each.kind == "ConfigMap" for text in each["data"].values()
    ]


@pytest.mark.parametrize("name", ["a\x85b", "a b", "a=b", "1a", ""])
def test_the_name_of_a_variable_is_one(renderer: Renderer, request_for: Request, name: str) -> None:
    values = {"extraEnv": [{"name": name, "value": "x"}]}
    assert "name" in refusal(renderer, request_for, "torch-elastic", values=values)


@pytest.mark.parametrize("key", ["portsNum", "portsNumForSparse"])
def test_more_ports_than_a_pserver_can_have_are_refused_at_once(
    renderer: Renderer, request_for: Request, key: str
) -> None:
    sentence = refusal(renderer, request_for, "paddle", values={"pservers": {key: 10**18}})
    assert key in sentence


@pytest.mark.parametrize("chart", ["torch-elastic", "mpi-training"])
def test_a_dataset_without_any_claim_is_refused_with_a_sentence(
    renderer: Renderer, request_for: Request, chart: str
) -> None:
    sentence = refusal(renderer, request_for, chart, values={"verify": {"paths": ["/data"]}, "claims": []})
    assert "verify.paths: /data is not on one of the claims" in sentence
