"""What `autoscale` renders; charts/autoscaler beside it."""

from __future__ import annotations

from typing import Any

from bireme.autoscale.policy import Policy
from bireme.core.manifests import Manifest
from bireme.helm import Render
from tests.support.rendered import RenderChart

REGISTRY = "global.imageRegistries.bireme=registry.example.com"
PADDLE = ["paddle.dispatch=dynamic", "etcd.enabled=true"]
ON = "elastic.autoscale.enabled=true"


def kinds(found: Render, kind: str) -> list[Manifest]:
    return [each for each in found.manifests if each.kind == kind]


def only(found: Render, kind: str, component: str) -> Manifest:
    label = "app.kubernetes.io/component"
    return next(each for each in kinds(found, kind) if each.labels.get(label) == component)


def policy(of: Manifest) -> Policy:
    return Policy.of(of["metadata"]["annotations"]["bireme/autoscale"])


def started_with(found: Render) -> Any:
    """The workers for which the first round waits."""
    return next(
        each["data"]["workers"] for each in kinds(found, "ConfigMap") if "workers" in each.get("data", {})
    )


def test_the_controller_reads_the_bounds_of_a_torch_job(render: RenderChart) -> None:
    sets = [
        ON,
        "workers=4",
        "elastic.minWorkers=2",
        "elastic.maxWorkers=8",
        "elastic.workersPerUnit=2",
        "elastic.spares=1",
    ]
    found = render("torch-elastic", sets=sets)
    job = only(found, "Job", "worker")
    assert job.labels["bireme/autoscale"] == "true"
    assert policy(job) == Policy(2, 8, step=2, spares=1)
    assert job["spec"]["parallelism"] == job["spec"]["completions"] == 5
    # The first round waits for those that are there in any case.
    assert started_with(found) == "2"


def test_nights_and_a_metric_reach_the_controller(render: RenderChart) -> None:
    berlin = {"from": "20:00", "to": "06:00", "days": ["Fri"], "max": 8, "timeZone": "Europe/Berlin"}
    nights = [berlin, {"from": "12:00", "to": "13:00", "min": 1}]
    sets = [ON, "elastic.autoscale.min=2", "elastic.autoscale.max=4", "workers=2"]
    sets += ["elastic.autoscale.metric.query=sum(queue)", "elastic.autoscale.metric.perWorker=10"]
    found = render("torch-elastic", sets=sets, values={"elastic": {"autoscale": {"schedules": nights}}})
    read = policy(only(found, "Job", "worker"))
    assert (read.minimum, read.maximum, read.query, read.per_worker) == (2, 4, "sum(queue)", 10)
    assert [(each.zone, each.days, each.maximum) for each in read.schedules] == [
        ("Europe/Berlin", ("Fri",), 8),
        ("UTC", (), None),
    ]
    assert started_with(found) == "1"


def test_the_end_of_a_paddle_job_waits_for_trainers_that_are_always_there(render: RenderChart) -> None:
    found = render("paddle", sets=[*PADDLE, ON, "workers=3", "elastic.autoscale.max=6"])
    job = only(found, "Job", "trainer")
    assert (policy(job), job["spec"]["parallelism"]) == (Policy(1, 6), 3)
    settings = next(each for each in kinds(found, "ConfigMap") if each.name.endswith("-settings"))
    assert settings["data"]["PADDLE_TRAINERS_NUM"] == "1"
    assert "bireme/autoscale" not in only(found, "Job", "pserver")["metadata"]["annotations"]


RIGHTS = {
    "nodes": {"list"},
    "pods": {"list"},
    "jobs": {"list", "patch"},
    "events": {"create"},
    "clusterqueues": {"get"},
    "localqueues": {"get"},
    "leases": {"create", "get", "update"},
}


def rules(found: Render, kind: str) -> list[Any]:
    return [rule for each in kinds(found, kind) for rule in each["rules"]]


def verbs(found: Render) -> dict[str, set[str]]:
    """What the controller may do, by resource."""
    verbs: dict[str, set[str]] = {}
    for rule in [*rules(found, "ClusterRole"), *rules(found, "Role")]:
        for resource in rule["resources"]:
            verbs.setdefault(resource, set()).update(rule["verbs"])
    return verbs


def test_the_controller_makes_and_deletes_no_pods(render: RenderChart) -> None:
    assert verbs(render("autoscaler", sets=[REGISTRY])) == RIGHTS


def test_where_workers_leave_ill_nodes_it_taints_these_and_evicts_pods_of_its_namespaces(
    render: RenderChart,
) -> None:
    found = render("autoscaler", sets=[REGISTRY, "illNodes.enabled=true", "watchNamespace=team"])
    of_devices = {key: {"list"} for key in ("resourceslices", "resourceclaims", "devicetaintrules")}
    evicts = {"pods/eviction": {"create"}}
    assert verbs(found) == RIGHTS | {"nodes": {"list", "patch"}} | of_devices | evicts
    assert not any("pods/eviction" in rule["resources"] for rule in rules(found, "ClusterRole"))
    (container,) = kinds(found, "Deployment")[0]["spec"]["template"]["spec"]["containers"]
    assert "--ill-nodes" in container["args"]


def test_a_controller_of_one_namespace_patches_jobs_only_there(render: RenderChart) -> None:
    found = render("autoscaler", sets=[REGISTRY, "watchNamespace=team"])
    assert not any("jobs" in rule["resources"] for rule in rules(found, "ClusterRole"))
    (role,) = (each for each in kinds(found, "Role") if "jobs" in str(each["rules"]))
    assert role.namespace == "team"
    (container,) = kinds(found, "Deployment")[0]["spec"]["template"]["spec"]["containers"]
    assert "--namespace=team" in container["args"]


def test_a_controller_of_several_namespaces_has_a_role_in_each(render: RenderChart) -> None:
    found = render("autoscaler", sets=[REGISTRY, "watchNamespace={vision,speech}"])
    assert not any("jobs" in rule["resources"] for rule in rules(found, "ClusterRole"))
    for kind in ("Role", "RoleBinding"):
        in_them = [each.namespace for each in kinds(found, kind) if each.namespace != "default"]
        assert in_them == ["vision", "speech"]
    (container,) = kinds(found, "Deployment")[0]["spec"]["template"]["spec"]["containers"]
    assert {"--namespace=vision", "--namespace=speech"} <= set(container["args"])
