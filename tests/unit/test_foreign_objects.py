"""Objects of other people's charts with a wrong value anywhere: planned, or refused with a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.cli import cli
from bireme.cli.views import plan_view
from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest
from bireme.plan.instances import Instance
from bireme.plan.picture import svg
from bireme.plan.topology import expand, fit

WRONG: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1e300, 10**18, "x", "", "9" * 5000),
    *([], {}, [[]], [{}], [None], {"a": None}),
)
POD: dict[str, Any] = {
    "nodeSelector": {"node.kubernetes.io/instance-type": "p4d.24xlarge"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "bireme/node-type", "operator": "In", "values": ["p4d.24xlarge"]}
                        ]
                    }
                ]
            }
        }
    },
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "overhead": {"cpu": "1"},
    "initContainers": [{"name": "first", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}],
    "containers": [
        {
            "name": "main",
            "command": ["torchrun"],
            "args": ["train.py"],
            "env": [
                {"name": "PET_NNODES", "value": "2:4"},
                {"name": "PET_NPROC_PER_NODE", "value": "gpu"},
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
            "resources": {
                "limits": {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 4, "hugepages-2Mi": "5120Mi"},
                "requests": {"memory": "1Gi", "cpu": "500m"},
            },
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
    ],
    "volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ],
}
TEMPLATE = {"metadata": {"labels": {"app": "a"}, "annotations": {"note": "a"}}, "spec": POD}
REPLICAS = {"replicas": 2, "restartPolicy": "Never", "template": TEMPLATE}
STORAGE = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
CLAIM = {"metadata": {"name": "data"}, "spec": STORAGE}
SPECS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("batch/v1", "Job"): {
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "suspend": False,
        "template": TEMPLATE,
    },
    ("batch/v1", "CronJob"): {"schedule": "@daily", "jobTemplate": {"spec": {"template": TEMPLATE}}},
    ("apps/v1", "StatefulSet"): {
        "replicas": 2,
        "serviceName": "a",
        "template": TEMPLATE,
        "volumeClaimTemplates": [CLAIM],
    },
    ("apps/v1", "Deployment"): {"replicas": 2, "template": TEMPLATE},
    ("apps/v1", "DaemonSet"): {"template": TEMPLATE},
    ("v1", "Pod"): POD,
    ("v1", "PersistentVolumeClaim"): STORAGE,
    ("kubeflow.org/v2beta1", "MPIJob"): {
        "slotsPerWorker": 8,
        "runPolicy": {"suspend": False},
        "mpiReplicaSpecs": {"Launcher": REPLICAS, "Worker": REPLICAS},
    },
    ("kubeflow.org/v1", "PyTorchJob"): {
        "nprocPerNode": "8",
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
        "pytorchReplicaSpecs": {"Master": REPLICAS, "Worker": REPLICAS},
    },
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {
        "replicatedJobs": [{"name": "workers", "replicas": 2, "template": {"spec": {"template": TEMPLATE}}}]
    },
}


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every key and item of ``value``."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in below:
        yield (*at, key)
        yield from places(each, (*at, key))


def wrong_at(manifest: dict[str, Any], path: tuple[str | int, ...], value: Any) -> Manifest:
    changed: Any = copy.deepcopy(manifest)
    inside = changed
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = value
    return Manifest(changed)


def refusal(manifest: Manifest, instances: Mapping[str, Instance]) -> str | None:
    """What is said of it, None when it is planned."""
    try:
        plan = expand("run", "default", [manifest], instances)
        plan_view(plan)
        svg(plan)
        fit(plan.pods, {"p4d.24xlarge": 2}, instances)
    except BiremeError as error:
        return str(error)
    return None


OWN = list(SPECS)
IN_PODS = [each for each in OWN if each[1] not in ("Pod", "PersistentVolumeClaim")]


@pytest.mark.parametrize("known", OWN, ids=str)
def test_a_wrong_value_anywhere_is_planned_or_refused_with_a_sentence(
    instances: Mapping[str, Instance], known: tuple[str, str]
) -> None:
    refused_or_planned(instances, *known, in_pods=known not in IN_PODS)


# All kinds read the pods of their templates alike, and a Pod is one of OWN.
@pytest.mark.whole
@pytest.mark.parametrize("known", IN_PODS, ids=str)
def test_so_is_a_wrong_value_anywhere_in_the_pods_of_a_template(
    instances: Mapping[str, Instance], known: tuple[str, str]
) -> None:
    refused_or_planned(instances, *known, in_pods=True)


def refused_or_planned(instances: Mapping[str, Instance], version: str, kind: str, *, in_pods: bool) -> None:
    manifest = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "a", "labels": {"app": "a"}, "annotations": {"note": "a"}},
        "spec": SPECS[version, kind],
    }
    said = {
        (path, str(value)): refusal(wrong_at(manifest, path, value), instances)
        for path in places(manifest)
        if in_pods or not POD.keys() & set(path)
        for value in WRONG
    }
    sentences = {where: sentence for where, sentence in said.items() if sentence is not None}
    assert sentences
    bad = [where for where, text in sentences.items() if not text or len(text) > 400 or "\n" in text]
    assert bad == []


def test_objects_in_lists_are_planned_like_others(bireme_plan: Callable[..., str]) -> None:
    job = {"metadata": {"name": "train"}, "spec": {"parallelism": 2, "template": {"spec": POD}}}
    known = {"apiVersion": "batch/v1", "kind": "Job"}
    lists = [
        {"apiVersion": "v1", "kind": "List", "items": [known | job]},
        {"apiVersion": "batch/v1", "kind": "JobList", "items": [{**job, "metadata": {"name": "other"}}]},
    ]
    text = "---\n".join(json.dumps(each) + "\n" for each in lists)
    plan = json.loads(bireme_plan(text, "-o", "json"))
    assert sorted(each["name"] for each in plan["workloads"]) == ["other", "train"]
    assert plan["totals"]["pods"] == 4


def test_a_name_that_leaves_no_room_for_an_index_is_refused(bireme_plan: Callable[..., str]) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j" * 61}}
    spec = {"completionMode": "Indexed", "completions": 12, "template": {"spec": POD}}
    said = bireme_plan(json.dumps(job | {"spec": spec}), fails=True)
    assert "pod names would have 64 characters with their index, 63 is the most: give the release" in said


def test_a_folder_with_capitals_gives_its_release_a_name_without(make_chart: Callable[..., Path]) -> None:
    chart = make_chart("HyperPodChart", templates={"objects.yaml": ""})
    done = CliRunner().invoke(cli, ["plan", str(chart)])
    assert done.stdout.startswith("hyperpodchart in namespace default")


def term(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("terms", "labels"),
    [
        ([], " labelled nvidia.com/mps.capable=true"),
        (
            [term("pci-10de.present", "In", "true"), term("vendor", "In", "NVIDIA", "Arm")],
            " labelled nvidia.com/mps.capable=true and pci-10de.present=true"
            " or nvidia.com/mps.capable=true and vendor of NVIDIA, Arm",
        ),
        ([term("gpus", "Exists"), term("gpus", "Gt", "3")], "capable=true and gpus over 3"),
        (
            [term("eks.amazonaws.com/compute-type", "NotIn", "fargate")],
            " labelled nvidia.com/mps.capable=true",
        ),
    ],
)
def test_a_daemonset_names_the_labels_that_nodes_must_be_given(
    bireme_plan: Callable[..., str], terms: list[dict[str, Any]], labels: str
) -> None:
    about = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "mps"}}
    pod: dict[str, Any] = {
        "nodeSelector": {"nvidia.com/mps.capable": "true"},
        "containers": [{"name": "mps"}],
    }
    if terms:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        pod["affinity"] = {"nodeAffinity": required}
    said = bireme_plan(json.dumps(about | {"spec": {"template": {"spec": pod}}}))
    assert f"{labels} of" in " ".join(said.split())
