"""The etcd chart with real members: they answer, one is lost, and more of them join."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from bireme.clusters.api import ApiError
from bireme.clusters.kind import KindCluster
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import Shell, Values, until

pytestmark = pytest.mark.usefixtures("etcd_images")

Etcd = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(shell: Shell) -> Etcd:
    """``ask(release, "kv/range", key="a")``: etcd's JSON gateway, in the pod of member 0; text is encoded."""

    def _ask(release: InstalledRelease, call: str, **fields: str) -> dict[str, Any]:
        body = {key: encode(value) for key, value in fields.items()}
        return shell.ask_etcd(release.namespace, f"{release.name}-0", call, body)

    return _ask


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_one_member_serves_and_grows_to_three_with_its_data(
    release: ReleaseFactory, shell: Shell, kind_values: Values, cluster: KindCluster, ask: Etcd
) -> None:
    etcd = release("etcd", values=kind_values["etcd"], timeout=180)
    path = f"/api/v1/namespaces/{etcd.namespace}/services/{etcd.name}:2379/proxy/v3/kv/range"

    def is_refused() -> bool:
        # The Service has no pods yet when the first one has just become ready.
        with pytest.raises(ApiError) as refused:
            cluster.api.create(path, {"key": "AA=="})
        return "user name is empty" in str(refused.value)

    until(is_refused, what="etcd to ask for a user")
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
