"""Rendered objects as read-only views, and the checks that need nothing but the object."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.errors import BiremeError
from bireme.helm import parse
from bireme.lint import duplicates, kubeconform, name_problems
from bireme.manifests import Manifest
from bireme.tools import Toolbox

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


def job(name: str = "j", completions: int = 3, mode: str = "Indexed", **template: Any) -> Manifest:
    spec = {
        "completionMode": mode,
        "completions": completions,
        "template": {"spec": {"containers": []}, **template},
    }
    return Manifest({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})


def named(kind: str, name: str, **labels: Any) -> Manifest:
    return Manifest({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": labels}})


def test_helms_output_becomes_typed_objects_with_their_source() -> None:
    first, second = parse(TEXT)
    assert (first.kind, first.api_version, first.name, first.namespace) == ("ConfigMap", "v1", "a", None)
    assert first.source == "web/templates/a.yaml"
    assert first.labels == {"app": "web"}
    assert first["data"]["script"] == "one\n --- not a separator\ntwo\n"
    assert (first.is_hook, second.is_hook, second.namespace) == (False, True, "sea")
    assert second.identity == "Pod/t"


def test_dates_stay_the_strings_they_are_for_kubernetes() -> None:
    assert parse(TEXT)[0].annotations["day"] == "2020-01-01"


def mpi_job(name: str, **replicas: Any) -> Manifest:
    return Manifest({"kind": "MPIJob", "metadata": {"name": name}, "spec": {"mpiReplicaSpecs": replicas}})


@pytest.mark.parametrize(
    ("text", "said"), [("# Source: a.yaml\n- 1\n", "a.yaml holds a list"), ("a: [", "not valid YAML")]
)
def test_a_document_that_is_no_object_is_refused(text: str, said: str) -> None:
    with pytest.raises(BiremeError, match=said):
        parse(text)


def test_a_manifest_is_frozen_all_the_way_down_and_thaws_into_a_copy() -> None:
    manifest = Manifest(pod(containers=[{"name": "c", "env": [{"name": "A"}]}]))
    with pytest.raises(TypeError):
        manifest["spec"]["containers"][0]["env"] = []
    with pytest.raises(AttributeError):
        manifest["spec"]["containers"].append({})
    with pytest.raises(AttributeError, match="thaw"):
        manifest.source = "elsewhere"
    copy = manifest.thaw()
    copy["spec"]["containers"][0]["env"].append({"name": "B"})
    assert len(manifest["spec"]["containers"][0]["env"]) == 1
    assert manifest == Manifest(pod(containers=[{"name": "c", "env": [{"name": "A"}]}]))
    assert len({manifest, Manifest(pod(containers=[{"name": "c", "env": [{"name": "A"}]}]))}) == 1


def test_an_object_without_metadata_has_empty_names_and_labels() -> None:
    bare = Manifest({"kind": "List"})
    assert (bare.name, bare.labels, bare.annotations, bare.identity) == ("", {}, {}, "List/(no name)")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"containers": [{"name": "c", "env": [{"name": "A"}, {"name": "A"}]}]},
            "env of container c have name A",
        ),
        ({"containers": [{"name": "c"}, {"name": "c"}]}, "containers of pod have name c"),
        ({"containers": [], "volumes": [{"name": "v"}, {"name": "v"}]}, "volumes of pod have name v"),
        (
            {"initContainers": [{"name": "i", "volumeMounts": [{"mountPath": "/d"}, {"mountPath": "/d"}]}]},
            "volumeMounts of container i have mountPath /d",
        ),
        (
            {
                "containers": [
                    {"name": "c", "ports": [{"containerPort": 1}, {"containerPort": 1, "protocol": "TCP"}]}
                ]
            },
            "ports of container c have containerPort 1, protocol TCP",
        ),
    ],
)
def test_list_items_that_server_side_apply_cannot_tell_apart_are_named(
    spec: dict[str, Any], said: str
) -> None:
    [sentence] = duplicates(Manifest(pod(**spec)))
    assert sentence == f"Pod/p: two entries in {said}"


def test_duplicates_are_found_in_pod_templates_services_and_claims() -> None:
    cron = {"jobTemplate": {"spec": {"template": {"spec": {"volumes": [{"name": "v"}] * 2}}}}}
    assert duplicates(Manifest({"kind": "CronJob", "metadata": {"name": "c"}, "spec": cron}))
    ports = [{"port": 1, "name": "a"}, {"port": 1, "protocol": "UDP", "name": "a"}, {"port": 1, "name": "b"}]
    service = Manifest({"kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}})
    assert duplicates(service) == [
        "Service/s: two entries in ports of service have port 1, protocol TCP",
        "Service/s: two ports are named a",
    ]
    claims = [{"metadata": {"name": "data"}}] * 2
    members = Manifest(
        {"kind": "StatefulSet", "metadata": {"name": "m"}, "spec": {"volumeClaimTemplates": claims}}
    )
    assert duplicates(members) == [
        "StatefulSet/m: two entries in volumeClaimTemplates of spec have name data"
    ]


def test_both_roles_of_an_mpi_job_are_looked_at() -> None:
    twice = {"spec": {"containers": [{"name": "c", "env": [{"name": "A"}, {"name": "A"}]}]}}
    once = {"metadata": {"labels": {"app": "a b"}}, "spec": {"containers": [{"name": "c"}]}}
    found = mpi_job("m", Launcher={"template": once}, Worker={"template": twice})
    assert duplicates(found) == ["MPIJob/m: two entries in env of container c have name A"]
    assert name_problems(found) == [
        "MPIJob/m: pod label app='a b' must be at most 63 letters, digits, '-', '_' or '.'"
    ]


def test_one_port_under_two_protocols_is_no_duplicate() -> None:
    ports = [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}]
    assert duplicates(Manifest(pod(containers=[{"name": "c", "ports": ports}]))) == []


@pytest.mark.parametrize(
    "fine",
    [
        named("StatefulSet", "s" * 52),
        named("Job", "j" * 63),
        named("ConfigMap", "a.b." + "c" * 200),
        named("Role", "system:reader"),
        named("Service", "s" * 63, version="1.2.3_x", empty=""),
        job("j" * 61, completions=10),
        job("j" * 63, mode="NonIndexed"),
        mpi_job("m" * 54),
        mpi_job("m" * 53, Worker={"replicas": 100, "template": {}}),
    ],
    ids=repr,
)
def test_names_that_kubernetes_and_its_controllers_can_live_with_pass(fine: Manifest) -> None:
    assert name_problems(fine) == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (named("StatefulSet", "s" * 53), "the name has 53 characters, 52 is the most (its controller adds"),
        (named("Service", "s" * 64), "the name has 64 characters, 63 is the most"),
        (named("Service", "1st"), "the name '1st' may only hold"),
        (named("Pod", "Upper"), "the name 'Upper' may only hold"),
        (job("j" * 61, completions=11), "pod names would have 64 characters with their index"),
        (mpi_job("m" * 55), "host names would have 64 characters with role and index"),
        (mpi_job("m" * 54, Worker={"replicas": 11, "template": {}}), "host names would have 64 characters"),
        (named("Pod", "p", app="x" * 64), "must be at most 63"),
        (named("Pod", "p", app="-x"), "label app='-x' must be"),
        (named("Pod", "p", app=True), "label app is True, it must be a string"),
        (job(metadata={"labels": {"app": "a b"}}), "pod label app='a b' must be"),
    ],
    ids=lambda case: repr(case)[:30],
)
def test_names_and_labels_that_do_not_fit_are_named(bad: Manifest, said: str) -> None:
    [sentence] = name_problems(bad)
    assert sentence.startswith(f"{bad.identity}: ")
    assert said in sentence


def test_kubernetes_own_schemas_judge_many_renders_in_one_go(toolbox: Toolbox) -> None:
    good = Manifest(pod(containers=[{"name": "c", "image": "i"}]))
    bad = Manifest(pod(containers=[{"name": "c", "image": 5}], restartpolicy="Never"))
    other = Manifest({"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "m"}})
    found = kubeconform({"fine": [good, other], "nothing": [], "broken": [good, bad]}, None, toolbox)
    assert {sentence.partition(": ")[0] for sentence in found} == {"broken"}
    assert "Pod/p" in found[0]
    assert "spec.containers.0.image" in found[0]
