"""What a namespace with quotas and one that denies all traffic ask of the charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.render.cases import CASES, Case, Matrix
from tests.support.rendered import RenderChart, the

POLICY = "networkPolicy.enabled=true"
# The values with which each chart renders as many kinds of pods as it has.
GUARDED = {
    "torch-elastic": ("full", "c10d"),
    "mpi-training": ("allreduce", "mpijob"),
    "paddle": ("dynamic",),
    "dataset": ("mixed", "s3"),
    "etcd": ("secured", "s3"),
    "mpijob": ("full", "namespaced"),
    "gpu-metrics": ("dcgm", "container-insights"),
    "autoscaler": ("default",),
}
JOBS = ("torch-elastic", "mpi-training", "paddle")
# The training itself: its resources follow from the instance type, or are those of `resources`.
TRAINING = {"trainer", "data"}
# Containers of charts/torch-elastic/ci/full-values.yaml.
GIVEN = {"prepare", "proxy"}


def pods(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every specification of a pod, and its metadata, in an object."""
    if isinstance(value, Mapping):
        spec = value.get("spec")
        if isinstance(spec, Mapping) and "containers" in spec:
            yield value
        for each in value.values():
            yield from pods(each)


def containers_of(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The init containers and the containers of a pod."""
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def has_memory(container: Mapping[str, Any]) -> bool:
    """Whether a quota for memory admits the container."""
    resources = container.get("resources", {})
    return all(resources.get(side, {}).get("memory") for side in ("requests", "limits"))


@pytest.mark.parametrize("case", [case for case in CASES if not case.instance], ids=str)
def test_every_container_around_the_training_has_requests_and_limits(matrix: Matrix, case: Case) -> None:
    """Containers that a case adds by its values are left out."""
    found = [
        container["name"]
        for manifest in matrix(case).manifests
        for pod in pods(manifest.thaw())
        for container in containers_of(pod)
        if not has_memory(container) and container["name"] not in TRAINING | GIVEN
    ]
    assert found == []


@pytest.mark.parametrize(
    ("chart", "files", "sets", "containers"),
    [
        ("torch-elastic", [], ["pod.helperResources.limits.cpu=3"], {"rendezvous"}),
        ("etcd", [], ["helperResources.limits.cpu=3"], {"join", "health"}),
        (
            "dataset",
            ["charts/dataset/ci/s3-values.yaml"],
            ["shell.enabled=true", "shell.resources.limits.cpu=3", "test.resources.limits.cpu=3"],
            {"shell", "verify"},
        ),
        ("gpu-metrics", [], ["agent=dcgm", "test.resources.limits.cpu=3"], {"metrics"}),
        ("efa-device-plugin", [], ["region=us-west-2", "test.resources.limits.cpu=3"], {"device"}),
        ("mpijob", [], ["testResources.limits.cpu=3"], {"leader"}),
        (
            "autoscaler",
            [],
            ["testResources.limits.cpu=3", "global.imageRegistries.bireme=registry.example.com"],
            {"dry-run"},
        ),
    ],
)
def test_values_change_the_resources_of_helpers(
    render: RenderChart, chart: str, files: list[str], sets: list[str], containers: set[str]
) -> None:
    rendered = render(chart, files=files, sets=sets)
    changed = {
        container["name"]
        for manifest in rendered.manifests
        for pod in pods(manifest.thaw())
        for container in containers_of(pod)
        if container.get("resources", {}).get("limits", {}).get("cpu") == 3
    }
    assert changed >= containers


@pytest.mark.parametrize(("chart", "name"), [(chart, name) for chart in GUARDED for name in GUARDED[chart]])
def test_one_policy_is_for_every_pod_of_the_release(render: RenderChart, chart: str, name: str) -> None:
    """Also for its etcd, for hooks and for `helm test`: without it none of them gets anywhere."""
    rendered = render(chart, files=[f"charts/{chart}/ci/{name}-values.yaml"], sets=[POLICY], release="a")
    spec = the(rendered, "NetworkPolicy")["spec"]
    wanted = spec["podSelector"]["matchLabels"]
    found = [pod for manifest in rendered.manifests for pod in pods(manifest.thaw())]
    assert found
    assert all(wanted.items() <= pod["metadata"]["labels"].items() for pod in found)
    assert list(spec["policyTypes"]) == ["Ingress", "Egress"]
    within = [{"podSelector": {"matchLabels": wanted}}]
    assert [dict(each) for each in spec["ingress"][0]["from"]] == within
    assert [dict(each) for each in spec["egress"][0]["to"]] == within
    assert {port["port"] for port in spec["egress"][1]["ports"]} == {53}


@pytest.mark.parametrize("chart", GUARDED)
def test_what_reaches_jobs_and_etcd_is_closed_unasked_and_nothing_else(
    render: RenderChart, chart: str
) -> None:
    rendered = render(chart, files=[f"charts/{chart}/ci/{GUARDED[chart][0]}-values.yaml"])
    closed = [
        list(each["spec"]["policyTypes"]) for each in rendered.manifests if each.kind == "NetworkPolicy"
    ]
    assert closed == ([["Ingress"]] if chart in (*JOBS, "etcd") else [])


@pytest.mark.parametrize(
    ("chart", "sets", "ports"),
    [
        ("torch-elastic", ["data.dispatcher.enabled=true", "etcd.persistence.enabled=true"], [9464, 7190]),
        ("mpi-training", ["data.dispatcher.enabled=true", "etcd.enabled=true"], [7190]),
        ("paddle", ["paddle.dispatch=dynamic", "etcd.enabled=true"], [7190]),
    ],
)
def test_status_and_metrics_of_a_job_are_open_until_values_name_who_may_see_them(
    render: RenderChart, chart: str, sets: list[str], ports: list[int]
) -> None:
    """The API server, Prometheus and the autoscaler ask there. No rule can name the first."""

    def rule(*more: str) -> Mapping[str, Any]:
        own, rule = the(render(chart, sets=[*sets, *more]), "NetworkPolicy").thaw()["spec"]["ingress"]
        assert "ports" not in own
        return {"from": [], **rule}

    assert rule() == {"from": [], "ports": [{"protocol": "TCP", "port": each} for each in ports]}
    named = rule("networkPolicy.observers[0].podSelector.matchLabels.app=prometheus")
    assert named["from"] == [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]


@pytest.mark.parametrize(
    ("chart", "sets"),
    [
        *((chart, ["pod.hostNetwork=true"]) for chart in JOBS),
        ("mpi-training", ["mpi.orchestrator=MPIJob", "mpi.launcher.hostNetwork=true"]),
    ],
)
def test_pods_in_the_network_of_their_node_reach_the_other_pods_of_the_job(
    render: RenderChart, chart: str, sets: list[str]
) -> None:
    """Its etcd, for example: they come with the address of the node, which no selector names."""
    assert {} in the(render(chart, sets=sets), "NetworkPolicy")["spec"]["ingress"]


@pytest.mark.parametrize(
    ("chart", "files", "sets", "ports"),
    [
        ("torch-elastic", [], ["etcd.enabled=false", "rendezvous.endpoints={etcd.team.svc:2379}"], {2379}),
        (
            "dataset",
            ["charts/dataset/ci/s3-values.yaml"],
            ["s3.endpoint=http://minio.team:9000"],
            {443, 9000, 80},
        ),
        ("dataset", [], ["claim.name=a", "claim.path=b", "sources[0].url=http://data.example.com/a"], {80}),
        ("etcd", ["charts/etcd/ci/s3-values.yaml"], [], {443, 80}),
        ("mpijob", [], [], {443, 6443}),
        ("autoscaler", ["charts/autoscaler/ci/namespaced-values.yaml"], [], {443, 6443, 9464, 9500, 9090}),
        ("gpu-metrics", ["charts/gpu-metrics/ci/cloudwatch-values.yaml"], [], {443, 6443, 80}),
        (
            "gpu-metrics",
            ["charts/gpu-metrics/ci/container-insights-values.yaml"],
            [],
            {443, 6443, 80, 10250},
        ),
        ("gpu-metrics", ["charts/gpu-metrics/ci/dcgm-values.yaml"], [], set()),
        ("mpi-training", [], ["networkPolicy.egress[0].ports[0].port=443"], {443}),
    ],
)
def test_what_the_values_name_is_reached(
    render: RenderChart, chart: str, files: list[str], sets: list[str], ports: set[int]
) -> None:
    spec = the(render(chart, files=files, sets=[POLICY, *sets]), "NetworkPolicy")["spec"]
    assert {port["port"] for rule in spec["egress"][2:] for port in rule["ports"]} == ports


BOARDS = pytest.mark.parametrize("chart", ["torch-elastic", "mpi-training"])
BOARD = [
    "monitoring.tensorboard.enabled=true",
    "monitoring.tensorboard.logDir=/logs",
    "claims[0].claimName=a",
    "claims[0].mountPath=/logs",
]
BALANCED = [
    *BOARD,
    "monitoring.tensorboard.service.type=LoadBalancer",
    "monitoring.tensorboard.service.port=80",
    r"monitoring.tensorboard.service.annotations.example\.com/scheme=internet-facing",
    "monitoring.tensorboard.service.loadBalancerSourceRanges={192.0.2.0/24,198.51.100.7/32}",
]


@BOARDS
def test_tensorboard_is_reached_from_named_networks_on_request(render: RenderChart, chart: str) -> None:
    def service(sets: list[str]) -> Mapping[str, Any]:
        return the(render(chart, sets=sets), "Service", "-tensorboard").thaw()

    own = service(BOARD)
    assert (own["spec"]["type"], own["spec"]["ports"][0]["port"]) == ("ClusterIP", 6006)
    balanced = service(BALANCED)
    assert balanced["metadata"]["annotations"] == {"example.com/scheme": "internet-facing"}
    assert balanced["spec"]["type"] == "LoadBalancer"
    assert balanced["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24", "198.51.100.7/32"]
    assert balanced["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]


@BOARDS
def test_a_policy_lets_the_load_balancer_reach_tensorboard(render: RenderChart, chart: str) -> None:
    def ports(sets: list[str]) -> list[int]:
        rules = the(render(chart, sets=[POLICY, *sets]), "NetworkPolicy")["spec"]["ingress"][1:]
        return [port["port"] for rule in rules for port in rule["ports"]]

    assert set(ports(BALANCED)) - set(ports(BOARD)) == {6006}


@pytest.mark.parametrize("chart", JOBS)
def test_on_eks_a_policy_lets_jobs_reach_aws_and_their_roles(render: RenderChart, chart: str) -> None:
    rendered = render(chart, files=["values/network-policy-eks.yaml"])
    policy = the(rendered, "NetworkPolicy")["spec"]
    agent = [each for each in policy["egress"] if "169.254.170.23/32" in str(each.get("to"))]
    assert [each["port"] for rule in agent for each in rule["ports"]] == [80]
    open_to_all = {each["port"] for rule in policy["egress"] if "to" not in rule for each in rule["ports"]}
    assert open_to_all == {53, 443}
