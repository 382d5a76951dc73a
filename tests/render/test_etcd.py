"""What one etcd release renders to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bireme.render import Render


def stateful_set(rendered: Render) -> Mapping[str, Any]:
    return next(item for item in rendered.manifests if item.kind == "StatefulSet")["spec"]


def test_one_member_has_no_disruption_budget_and_three_lose_one_at_a_time(
    render: Callable[..., Render],
) -> None:
    assert "PodDisruptionBudget" not in {item.kind for item in render("etcd").manifests}
    budget = next(i for i in render("etcd", sets=["replicas=3"]).manifests if i.kind == "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


def test_growing_does_not_change_the_pods_of_the_members_that_are_there(
    render: Callable[..., Render],
) -> None:
    one, three = (stateful_set(render("etcd", sets=[f"replicas={n}"])) for n in (1, 3))
    assert one["template"] == three["template"]


def test_probes_ask_the_health_port_and_liveness_never_asks_for_a_quorum(
    render: Callable[..., Render],
) -> None:
    spec = stateful_set(render("etcd"))
    etcd = spec["template"]["spec"]["containers"][0]
    assert dict(etcd["livenessProbe"]["httpGet"]) == {"path": "/livez", "port": "health"}
    assert dict(etcd["readinessProbe"]["httpGet"]) == {"path": "/readyz", "port": "health"}
    assert {"name": "health", "containerPort": 2381} in [dict(port) for port in etcd["ports"]]


@pytest.mark.parametrize(("enabled", "claims"), [("true", 1), ("false", 0)])
def test_data_lies_on_claims_or_in_the_pod(render: Callable[..., Render], enabled: str, claims: int) -> None:
    spec = stateful_set(render("etcd", sets=[f"persistence.enabled={enabled}"]))
    assert len(spec.get("volumeClaimTemplates", ())) == claims
    volumes = [volume["name"] for volume in spec["template"]["spec"]["volumes"]]
    assert ("data" in volumes) == (claims == 0)


@pytest.mark.parametrize(
    ("mode", "key"),
    [
        ("hard", "requiredDuringSchedulingIgnoredDuringExecution"),
        ("soft", "preferredDuringSchedulingIgnoredDuringExecution"),
    ],
)
def test_members_keep_apart(render: Callable[..., Render], mode: str, key: str) -> None:
    spec = stateful_set(render("etcd", sets=["replicas=3", f"antiAffinity={mode}"]))
    assert key in spec["template"]["spec"]["affinity"]["podAntiAffinity"]


def test_the_shared_configuration_is_etcds_own_format_with_whole_numbers(
    render: Callable[..., Render],
) -> None:
    config = next(item for item in render("etcd").manifests if "etcd.json" in item.get("data", {}))
    assert json.loads(config["data"]["etcd.json"])["quota-backend-bytes"] == 2 * 1024**3


def test_users_are_made_by_a_hook_after_install_and_upgrade(render: Callable[..., Render]) -> None:
    rendered = render("etcd", sets=["auth.enabled=true", "auth.existingSecret=users"])
    job = next(item for item in rendered.manifests if item.kind == "Job")
    assert job.annotations["helm.sh/hook"] == "post-install,post-upgrade"
