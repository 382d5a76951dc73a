"""A value never leaves its field: it arrives as it is, or is refused with a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.rendered import RenderChart, container_of, pod_of, the


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for below in value.values():
            yield from leaves(below)
    elif isinstance(value, list):
        for below in value:
            yield from leaves(below)
    else:
        yield value


@pytest.mark.parametrize("name", ["true", "010", "null", "2001-01-01"])
def test_a_name_that_looks_like_something_else_stays_text(render: RenderChart, name: str) -> None:
    values = {
        "imagePullSecrets": [name],
        "queue": {"name": name},
        "placement": {"priorityClassName": name},
        "serviceAccount": {"name": name},
        "claims": [{"claimName": name, "mountPath": "/data", "subPath": name}],
        "podLabels": {"team": name},
        "data": {"staging": {"claimName": name, "size": "1Gi"}},
        "monitoring": {"tensorboard": {"enabled": True, "logDir": "/data"}},
        "image": {"tag": name},
    }
    found = render("torch-elastic", instance="p4d.24xlarge", values=values, release=name, namespace=name)
    for manifest in found.manifests:
        metadata = manifest.thaw()["metadata"]
        assert metadata["namespace"] == name
        assert isinstance(metadata["name"], str)
        assert all(isinstance(each, str) for each in leaves(metadata.get("labels", {})))
        assert metadata["labels"]["app.kubernetes.io/instance"] == name
    pod = pod_of(found)
    assert pod["imagePullSecrets"] == [{"name": name}]
    assert (pod["priorityClassName"], pod["serviceAccountName"]) == (name, name)
    (claim,) = [each for each in pod["volumes"] if each["name"] == "claim-0"]
    assert claim["persistentVolumeClaim"]["claimName"] == name


@pytest.mark.parametrize("file", ["010", "true", "zq9 #", "&zq9", "[zq9"])
@pytest.mark.parametrize("place", [{"claimName": "backups"}, {"url": "s3://bucket/backups"}])
def test_a_snapshot_keeps_its_name(render: RenderChart, place: dict[str, str], file: str) -> None:
    restore = {"enabled": True, "file": file, **place}
    found = render("etcd", values={"restore": restore})
    pod = the(found, "StatefulSet").thaw()["spec"]["template"]["spec"]
    assert container_of(pod, "fetch")["command"][-1] == file
    assert f"/snapshots/{file}" in container_of(pod, "restore")["command"]


def test_extra_objects_may_be_text_with_several_documents(render: RenderChart) -> None:
    config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}-%s'}\n"
    text = "---\n".join(config % name for name in "ab")
    found = render("torch-elastic", values={"extraObjects": [text]})
    names = {each.name for each in found.manifests if each.kind == "ConfigMap"}
    assert {"release-a", "release-b"} <= names


def test_text_that_spells_a_control_character_stays(render: RenderChart) -> None:
    script = "print('\\u001b[1m', '\\\\b', '\\x85')\n\tpass\n"
    found = render("torch-elastic", values={"script": script})
    assert script.strip() in [
        text.strip() for each in found.manifests if each.kind == "ConfigMap" for text in each["data"].values()
    ]
