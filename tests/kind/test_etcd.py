"""The etcd chart with real members: they answer, one is lost, and more of them join."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from bireme.clusters.api import ApiError
from bireme.clusters.kind import KindCluster
from bireme.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import Shell, Values, until

pytestmark = pytest.mark.usefixtures("etcd_images")

Etcd = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(cluster: KindCluster) -> Etcd:
    """``ask(release, "kv/range", key="a")``: etcd's JSON gateway through the API server; text is encoded.

    It retries until it gets an answer, because the Service may still route to a member that has just gone.
    """

    def _ask(release: InstalledRelease, call: str, **fields: str) -> dict[str, Any]:
        service = f"/api/v1/namespaces/{release.namespace}/services/{release.name}:2379/proxy/v3/{call}"
        body = {key: encode(value) for key, value in fields.items()}
        answers: list[dict[str, Any]] = []

        def answered() -> bool:
            try:
                answers.append(cluster.api.create(service, body))
            except ApiError:
                return False
            return True

        until(answered, 60, f"an answer of {release.name} to {call}")
        return answers[0]

    return _ask


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_one_member_serves_and_grows_to_three_with_its_data(
    release: ReleaseFactory, shell: Shell, kind_values: Values, ask: Etcd
) -> None:
    etcd = release("etcd", values=kind_values["etcd"], timeout=180)
    ask(etcd, "kv/put", key="ship", value="bireme")
    shell.helm("test", etcd.name, "-n", etcd.namespace, "--timeout", "2m")

    etcd.upgrade(values={**kind_values["etcd"], "replicas": 3}, timeout=240)
    members = ask(etcd, "cluster/member/list")["members"]
    assert {member["name"] for member in members} == {f"{etcd.name}-{ordinal}" for ordinal in range(3)}
    assert not [member for member in members if member.get("isLearner")]
    (found,) = ask(etcd, "kv/range", key="ship")["kvs"]
    assert base64.b64decode(found["value"]) == b"bireme"

    etcd.delete_pod(f"{etcd.name}-0")
    ask(etcd, "kv/put", key="ship", value="trireme")
    assert etcd.wait(timeout=120) == ()
    shell.helm("test", etcd.name, "-n", etcd.namespace, "--timeout", "2m")
