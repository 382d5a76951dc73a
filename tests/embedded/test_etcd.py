"""etcd's topology on a real control plane; tests/runtime and tests/kind show that members join."""

from __future__ import annotations

import pytest

from bireme.errors import BiremeError
from bireme.pytest_plugin import ReleaseFactory

IN_POD = "persistence.enabled=false"


def test_one_member_grows_to_three_in_place(release: ReleaseFactory) -> None:
    etcd = release("etcd", sets=[IN_POD])
    (first,) = etcd.objects("pods")
    etcd.upgrade(sets=[IN_POD, "replicas=3"])
    assert etcd.differences() == ()
    members = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in etcd.objects("pods")}
    assert set(members) == {f"{etcd.name}-{ordinal}" for ordinal in range(3)}
    assert members[f"{etcd.name}-0"] == first["metadata"]["uid"], (
        "growing must not restart the member that is there"
    )


def test_an_upgrade_that_removes_members_is_refused(release: ReleaseFactory) -> None:
    etcd = release("etcd", sets=[IN_POD, "replicas=3"])
    with pytest.raises(BiremeError, match="replicas: this etcd has 3 members"):
        etcd.upgrade(sets=[IN_POD, "replicas=1"])


def test_changed_claims_are_refused_as_predicted(release: ReleaseFactory) -> None:
    etcd = release("etcd", sets=[IN_POD])
    changed = ["persistence.enabled=true"]
    assert etcd.changes(sets=changed).is_refused
    with pytest.raises(BiremeError, match="persistence of the StatefulSet"):
        etcd.upgrade(sets=changed)
