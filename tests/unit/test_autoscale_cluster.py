"""What the controller decides for a cluster whose objects are as the API server has them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bireme.autoscale.cluster import World, plan, running
from bireme.autoscale.policy import Policy
from bireme.core.errors import BiremeError

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC).timestamp()
TYPE = {"node.kubernetes.io/instance-type": "p5.48xlarge"}


def node(name: str, gpus: int = 8, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": TYPE},
        "spec": spec,
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus), "cpu": "190", "pods": "100"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, on: str = "", gpus: int = 8, priority: int = 0, **more: Any) -> dict[str, Any]:
    container = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec = {"containers": [container], "nodeSelector": TYPE, "priority": priority}
    return {
        "metadata": {"name": name, "uid": name, "namespace": "team", **more.pop("metadata", {})},
        "spec": {**spec, **({"nodeName": on} if on else {}), **more},
        "status": {"phase": "Running" if on else "Pending"},
    }


def job(name: str, workers: int, **policy: Any) -> dict[str, Any]:
    about = {"min": 1, "max": 8, "cooldown": 0, **policy}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": name,
            "annotations": {"bireme/autoscale": json.dumps(about)},
        },
        "spec": {
            "completions": workers,
            "parallelism": workers,
            "template": {"spec": pod("template", gpus=policy.get("gpus", 8))["spec"]},
        },
        "status": {},
    }


def workers(name: str, *places: str, **more: Any) -> list[dict[str, Any]]:
    """A pod of a job on each node; "" for one that waits."""
    return [
        pod(
            f"{name}-{index}",
            on,
            metadata={
                "ownerReferences": [{"uid": name}],
                "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
            },
            **more,
        )
        for index, on in enumerate(places)
    ]


def world(nodes: list[Any], pods: list[Any], jobs: list[Any], **more: Any) -> World:
    found, sentences = running(jobs, pods)
    assert sentences == ()
    return World(nodes, pods, found, **more)


def sizes(seen: World, now: float = NOW) -> dict[str, int]:
    return {each.job.removeprefix("team/"): each.workers for each in plan(seen, now)}


def nodes(count: int) -> list[dict[str, Any]]:
    return [node(f"n{index}") for index in range(count)]


def in_two_zones(there: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for index, each in enumerate(there):
        each["metadata"]["labels"] = {**TYPE, "topology.kubernetes.io/zone": f"z{index // 2}"}
    return there


def near(name: str, workers: int) -> dict[str, Any]:
    """A job whose workers stay in one zone."""
    found = job(name, workers)
    template = found["spec"]["template"]
    template["metadata"] = {"labels": {"app": name}}
    term = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"app": name}}}
    template["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return found


def test_nodes_that_take_no_pods_are_not_free() -> None:
    taint = {"key": "team", "value": "other", "effect": "NoSchedule"}
    unready = node("n3")
    unready["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    other = node("n4")
    other["metadata"]["labels"] = {}
    there = [*nodes(1), node("n1", taints=[taint]), node("n2", unschedulable=True), unready, other]
    assert sizes(world(there, workers("a", "n0"), [job("a", 1)])) == {}


def test_workers_that_stay_together_grow_only_where_the_others_are() -> None:
    """Traffic over EFA does not leave a zone."""
    assert sizes(world(in_two_zones(nodes(4)), workers("a", "n0"), [near("a", 1)])) == {"a": 2}


def test_a_job_gives_way_to_the_first_worker_of_one_that_is_in_no_zone_yet() -> None:
    pods = [*workers("a", "n0", "n1"), *workers("b", "")]
    assert sizes(world(in_two_zones(nodes(2)), pods, [near("a", 2), near("b", 1)])) == {"a": 1}


def test_a_job_gives_no_way_to_more_workers_of_such_a_job_than_its_minimum() -> None:
    pods = [*workers("a", "n0", "n1", "n2"), *workers("b", "", "")]
    there = in_two_zones([*nodes(2), node("n2")])
    assert sizes(world(there, pods, [near("a", 3), near("b", 2)])) == {"a": 2, "b": 1}


def test_several_workers_share_a_node() -> None:
    pods = [*workers("a", "n0", gpus=2), pod("service", "n0", gpus=3)]
    assert sizes(world(nodes(2), pods, [job("a", 1, gpus=2)])) == {"a": 6}


def test_a_pod_that_asks_for_no_cpu_has_a_place_where_none_is_left() -> None:
    """As the scheduler sees it."""
    cpu = {"cpu": "300", "nvidia.com/gpu": "0"}, {"cpu": "0", "nvidia.com/gpu": "8"}
    large, idle = ([{"name": "c", "resources": {"requests": each}}] for each in cpu)
    pods = [*workers("a", "n0"), pod("daemon", "n1", containers=large), pod("service", containers=idle)]
    assert sizes(world(nodes(2), pods, [job("a", 1)])) == {}
    assert sizes(world(nodes(2), pods[:2], [job("a", 1)])) == {"a": 2}


def test_pods_that_end_are_not_free_yet() -> None:
    going = pod("service", "n1", metadata={"deletionTimestamp": "2026-03-04T12:00:00Z"})
    assert sizes(world(nodes(2), [*workers("a", "n0"), going], [job("a", 1)])) == {}


def test_it_gives_way_only_to_pods_that_would_fit_then() -> None:
    pods = [*workers("a", "n0", "n1"), pod("service", gpus=16, priority=100)]
    assert sizes(world(nodes(2), pods, [job("a", 2)])) == {}
    elsewhere = pod("service", priority=100, nodeSelector={"kubernetes.io/hostname": "n7"})
    assert sizes(world(nodes(2), [*workers("a", "n0", "n1"), elsewhere], [job("a", 2)])) == {}


def test_as_many_workers_go_as_free_the_node_that_a_pod_needs() -> None:
    """The Job ends the workers with the highest indices, and the pod needs the node of a lower one."""
    there = [node("n0"), node("n1"), node("n2")]
    there[1]["metadata"]["labels"] = {**TYPE, "disk": "fast"}
    pods = [*workers("a", "n0", "n1", "n2"), pod("service", priority=100, nodeSelector={"disk": "fast"})]
    assert sizes(world(there, pods, [job("a", 3)])) == {"a": 1}


def test_it_gives_way_once_while_its_workers_save_and_end() -> None:
    going = workers("a", "n0", "n1", "n2")
    going[2]["metadata"]["deletionTimestamp"] = "2026-03-04T12:00:00Z"
    assert sizes(world(nodes(3), [*going, pod("service", priority=100)], [job("a", 2)])) == {}
    late = workers("a", "n0", "n1", "n2")
    assert sizes(world(nodes(3), [*late, pod("service", priority=100)], [job("a", 2)])) == {}


def test_a_pod_that_preempts_has_its_place() -> None:
    urgent = pod("service", priority=100)
    urgent["status"]["nominatedNodeName"] = "n2"
    going = workers("a", "n0", "n1", "n2")
    going[2]["metadata"]["deletionTimestamp"] = "2026-03-04T12:00:00Z"
    # The Job makes a third pod again, for which there is no node.
    assert sizes(world(nodes(3), [*going, urgent], [job("a", 3)])) == {"a": 2}


def test_workers_without_a_place_go_down_to_the_minimum() -> None:
    assert sizes(world(nodes(1), workers("a", "n0", "", ""), [job("a", 3)])) == {"a": 1}
    assert sizes(world(nodes(1), workers("a", "n0", "", ""), [job("a", 3, min=2)])) == {"a": 2}


def test_units_come_and_go_whole() -> None:
    assert sizes(world(nodes(5), workers("a", "n0", "n1"), [job("a", 2, min=2, step=2)])) == {"a": 4}
    pods = [*workers("a", "n0", "n1", "n2", "n3"), pod("service", priority=100)]
    assert sizes(world(nodes(4), pods, [job("a", 4, min=2, step=2)])) == {"a": 2}


def test_spares_are_no_workers() -> None:
    assert sizes(world(nodes(5), workers("a", "n0", "n1", "n2"), [job("a", 3, spares=1)])) == {"a": 4}


def test_a_job_shrinks_ahead_of_a_node_that_will_be_taken() -> None:
    spot = {"key": "aws-node-termination-handler/spot-itn", "value": "x", "effect": "NoSchedule"}
    there = [node("n0"), node("n1", taints=[spot])]
    assert sizes(world(there, workers("a", "n0", "n1"), [job("a", 2)])) == {"a": 1}
    # Its worker there finds another node.
    assert sizes(world([*there, node("n2")], workers("a", "n0", "n1"), [job("a", 2)])) == {}


def test_a_job_shrinks_ahead_of_the_workers_that_leave_an_ill_node() -> None:
    there = nodes(2)
    there[1]["status"]["conditions"].append({"type": "AcceleratedHardwareReady", "status": "False"})
    assert sizes(world(there, workers("a", "n0", "n1"), [job("a", 2)])) == {"a": 1}
    assert sizes(world([*there, node("n2")], workers("a", "n0", "n1"), [job("a", 2)])) == {}


def test_a_job_that_saves_is_left_alone() -> None:
    pods = [*workers("a", "n0", "n1"), pod("service", priority=100)]
    seen = world(nodes(2), pods, [job("a", 2)])
    assert sizes(seen) == {"a": 1}
    assert sizes(replace(seen, saving=frozenset({"team/a"}))) == {}
    roomy = world(nodes(3), workers("a", "n0", "n1"), [job("a", 2)])
    assert sizes(roomy) == {"a": 3}
    assert sizes(replace(roomy, saving=frozenset({"team/a"}))) == {}


def test_workers_that_are_still_to_be_made_have_their_places() -> None:
    """The Job was patched a moment ago; the other one does not get the same places."""
    pods = [*workers("a", "n0"), *workers("b", "n1")]
    assert sizes(world(nodes(3), pods, [job("a", 2, max=2), job("b", 1)])) == {}


def test_jobs_of_another_shape_wait_for_the_next_look() -> None:
    pods = [*workers("a", "n0"), *workers("b", "n1", gpus=4)]
    found = sizes(world(nodes(3), pods, [job("a", 1), job("b", 1, gpus=4)]))
    assert found == {"a": 2}


def test_a_job_grows_within_the_quota_of_its_queue() -> None:
    queued = job("a", 1)
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "training"}
    seen = world(nodes(5), workers("a", "n0"), [queued], quotas={"team/a": 2})
    assert sizes(seen) == {"a": 3}


def test_a_cooldown_holds_growth_only() -> None:
    young = job("a", 2, cooldown=300)
    young["metadata"]["annotations"]["bireme/resized"] = "2026-03-04T11:59:00+00:00"
    assert sizes(world(nodes(4), workers("a", "n0", "n1"), [young])) == {}
    pods = [*workers("a", "n0", "n1"), pod("service", priority=100)]
    assert sizes(world(nodes(2), pods, [young])) == {"a": 1}


@pytest.mark.parametrize(("hour", "size"), [(12, 2), (19, 2), (20, 6), (23, 6), (3, 6), (6, 2)])
def test_nights_have_bounds_of_their_own(hour: int, size: int) -> None:
    nights = {"from": "20:00", "to": "06:00", "max": 6, "timeZone": "UTC"}
    moment = datetime(2026, 3, 4, hour, 0, tzinfo=UTC).timestamp()
    seen = world(nodes(8), workers("a", "n0"), [job("a", 1, max=2, schedules=[nights])])
    assert sizes(seen, moment) == {"a": size}


def test_in_the_morning_it_gives_back_what_it_may_not_have() -> None:
    there = workers("a", *(f"n{index}" for index in range(6)))
    assert sizes(world(nodes(8), there, [job("a", 6, max=2)])) == {"a": 2}
    assert sizes(world(nodes(8), there[:1], [job("a", 1, min=3)])) == {"a": 3}


def test_the_days_are_those_on_which_a_schedule_starts() -> None:
    friday = {"from": "22:00", "to": "06:00", "days": ["Fri"], "max": 6, "timeZone": "Europe/Berlin"}
    policy = Policy.of(json.dumps({"min": 1, "max": 2, "schedules": [friday]}))
    saturday_morning = datetime(2026, 3, 7, 4, 0, tzinfo=UTC).timestamp()
    assert policy.bounds(saturday_morning) == (1, 6)
    assert policy.bounds(saturday_morning + 86400) == (1, 2)


def test_a_metric_sets_the_most() -> None:
    metric = {"query": "queue_length", "perWorker": 10}
    seen = world(nodes(8), workers("a", "n0"), [job("a", 1, metric=metric)], measured={"team/a": 25.0})
    assert sizes(seen) == {"a": 3}
    there = workers("a", "n0", "n1", "n2", "n3")
    seen = world(nodes(8), there, [job("a", 4, metric=metric)], measured={"team/a": 12.0})
    assert sizes(seen) == {"a": 2}


def test_jobs_that_end_or_stop_are_left_alone() -> None:
    ended, stopped, done = job("a", 1), job("b", 1), job("c", 1)
    ended["status"]["conditions"] = [{"type": "SuccessCriteriaMet", "status": "True"}]
    stopped["spec"]["suspend"] = True
    done["status"]["succeeded"] = 1
    assert running([ended, stopped, done], []) == ((), ())


def test_an_annotation_that_is_none_is_told() -> None:
    broken = job("a", 1)
    broken["metadata"]["annotations"]["bireme/autoscale"] = "{}"
    assert running([broken], []) == (
        (),
        ("team/a: its annotation is not what the chart writes ('min'): upgrade it",),
    )
    with pytest.raises(BiremeError, match="not what the chart writes"):
        Policy.of("[]")
