"""Objects whose pods a plan cannot count are named, with what is known of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from bireme.cli.views import outcome_view
from bireme.core.manifests import Manifest
from bireme.core.paths import Paths
from bireme.live.observe import compare
from bireme.live.summary import ReleaseStatus
from bireme.plan.changes import changes
from bireme.plan.instances import Instance
from bireme.plan.topology import expand
from bireme.plan.workloads import kind_of, pod_templates
from tests.support.live import live_pod

RAY_CLUSTER = """apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: {{ .Release.Name }}
spec:
  headGroupSpec:
    template:
      spec:
        containers: [{name: ray-head, image: ray}]
  workerGroupSpecs:
    - replicas: 2
      template:
        spec:
          containers: [{name: ray-worker, image: ray, resources: {limits: {nvidia.com/gpu: 8}}}]
"""
CRON_JOB = """apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ .Release.Name }}-backup
spec:
  schedule: "0 3 * * *"
  jobTemplate:
    spec:
      template:
        spec:
          containers: [{name: backup, image: etcd}]
"""
RAY_NOTE = "makes pods, but Bireme does not know how many a RayCluster has: none of them is counted"
CRON_NOTE = "a run-backup Job at each time of '0 3 * * *'"


def an_object(kind: str, spec: Mapping[str, Any], api_version: str = "example.com/v1") -> Manifest:
    return Manifest({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}, "spec": spec})


def test_people_read_about_a_kind_that_nobody_has_taught(bireme_plan: Callable[..., str]) -> None:
    text = " ".join(bireme_plan(RAY_CLUSTER).split())
    assert f"RayCluster/run: {RAY_NOTE}" in text


def test_the_picture_names_it_too(bireme_plan: Callable[..., str]) -> None:
    assert f"RayCluster/run: {RAY_NOTE}" in bireme_plan(RAY_CLUSTER, "-o", "svg")


def test_json_has_the_note_as_its_schema_says(bireme_plan: Callable[..., str], paths: Paths) -> None:
    written = json.loads(bireme_plan(RAY_CLUSTER, "-o", "json"))
    schema = json.loads((paths.schemas / "plan.schema.json").read_text())
    jsonschema.validate(written, schema, jsonschema.Draft202012Validator)
    [cluster] = written["workloads"]
    assert (cluster["kind"], cluster["note"], cluster["pods"]) == ("RayCluster", RAY_NOTE, [])


def test_a_cron_job_is_named_with_its_schedule(bireme_plan: Callable[..., str]) -> None:
    assert f"CronJob/run-backup: {CRON_NOTE}" in " ".join(bireme_plan(CRON_JOB).split())


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("LeaderWorkerSet", {"leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": []}}}}),
        ("ReplicationController", {"template": {"spec": {"containers": [{"name": "a"}]}}}),
    ],
)
def test_a_pod_template_is_found_at_any_depth(kind: str, spec: Mapping[str, Any]) -> None:
    assert len(pod_templates(an_object(kind, spec))) == 1


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("ClusterPolicy", {"rules": [{"validate": {"pattern": {"spec": {"containers": [{"name": "*"}]}}}}]}),
        ("CustomResourceDefinition", {"template": {"properties": {"spec": {"properties": {}}}}}),
        ("Certificate", {"secretTemplate": {"labels": {"a": "b"}}}),
    ],
)
def test_objects_without_pods_are_not_named(kind: str, spec: Mapping[str, Any]) -> None:
    assert kind_of(an_object(kind, spec)) is None


def test_a_train_job_is_named_although_it_has_no_pod_template() -> None:
    train_job = an_object("TrainJob", {"trainer": {"numNodes": 2}}, "trainer.kubeflow.org/v1alpha1")
    kind = kind_of(train_job)
    assert kind is not None
    assert kind.plan(train_job, {}).note.startswith("makes pods")
    assert kind_of(an_object("TrainJob", {"trainer": {"numNodes": 2}}, "trainer.example.com/v1")) is None


def test_a_kind_of_the_same_name_in_another_group_is_not_mistaken_for_kubernetes_own() -> None:
    volcano = an_object("Job", {"tasks": [{"template": {"spec": {"containers": []}}}]}, "batch.volcano.sh/v1")
    kind = kind_of(volcano)
    assert kind is not None
    assert kind.plan(volcano, {}).note.startswith("makes pods")


def test_pods_of_a_kind_that_nobody_has_taught_are_not_extra(instances: Mapping[str, Instance]) -> None:
    ray = an_object("RayCluster", {"headGroupSpec": {"template": {"spec": {"containers": []}}}})
    plan = expand("run", "default", [ray], instances)
    assert compare(plan, [live_pod("a-head-x", "RayCluster", "a")]) == ()
    [late] = compare(plan, [live_pod("a-head-x", "RayCluster", "a", ready=False)])
    assert (late.category, late.pod) == ("not-ready", "a-head-x")


def test_a_running_backup_of_a_cron_job_is_not_extra(instances: Mapping[str, Instance]) -> None:
    job: dict[str, Any] = {"spec": {"template": {"spec": {"containers": []}}}}
    cron = an_object("CronJob", {"schedule": "@daily", "jobTemplate": job}, "batch/v1")
    plan = expand("run", "default", [cron], instances)
    assert compare(plan, [live_pod("a-29383200-x1", "Job", "a-29383200")]) == ()
    assert compare(plan, [live_pod("a-29383200-x1", "Job", "a-29383200", "Failed", ready=False)]) == ()
    [foreign] = compare(plan, [live_pod("a-20261122-x1", "Job", "a-20261122")])
    assert foreign.category == "extra"


def test_a_status_without_differences_still_names_it(instances: Mapping[str, Instance]) -> None:
    ray = an_object("RayCluster", {"headGroupSpec": {"template": {"spec": {"containers": []}}}})
    plan = expand("run", "default", [ray], instances)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(outcome_view(ReleaseStatus(plan, (), ())))
    assert f"! RayCluster/a: {RAY_NOTE}" in captured.get()


def test_an_upgrade_updates_it_in_place() -> None:
    live, wanted = (
        an_object("RayCluster", {"workers": {"count": count, "template": {"spec": {"containers": []}}}})
        for count in (1, 2)
    )
    assert changes([live], [wanted]).sentences() == ["RayCluster/a: update in place (workers)"]
    assert changes([live], [live]).sentences() == ["RayCluster/a: nothing"]
