"""Jobs of other kinds that were adopted run on a control plane as their manifests say."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.adopt.jobs import Adopted, Adopter
from bireme.adopt.tables import table
from bireme.audit.documents import read
from bireme.clusters.embedded import EmbeddedCluster
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.plan.instances import Instance
from bireme.testing.pytest_plugin import ReleaseFactory

CASES = yaml.safe_load((Path(__file__).parents[1] / "render/adopt.yaml").read_text())
# Queues, schedulers, pools and hosts' ports of the manifests are not on this cluster.
ELSEWHERE = (
    "nodeSelector", "queue", "placement", "job.suspend", "pod.hostNetwork",
    "mpi.launcher.nodeSelector", "paddle.pservers.nodeSelector",
)  # fmt: skip
ACCOUNT = {"serviceAccount": {"create": True, "name": "trainer"}}
FULL_NODES = {"instance": {"type": "p4d.24xlarge"}}


AdoptCase = Callable[..., Adopted]


@pytest.fixture
def adopt_case(
    renderer: Renderer, bireme_paths: Paths, instances: Mapping[str, Instance], tmp_path: Path
) -> AdoptCase:
    """``adopt_case("jobset", {"workers": 2})``: the job of that case in tests/render/adopt.yaml, adopted with
    the values that its manifest does not say.
    """

    def adopted(case: str, given: Mapping[str, Any]) -> Adopted:
        file = tmp_path / "job.yaml"
        file.write_text(CASES[case]["manifest"])
        documents, _ = read([str(file)], {})
        [job] = [each for each in documents if each.kind in table("charts")]
        return Adopter(renderer, bireme_paths.charts, instances, given).adopt(job, documents)

    return adopted


def values_here(adopted: Adopted) -> dict[str, Any]:
    """The values of an adopted job, without queues, pools and schedulers that this cluster does not have."""
    values = copy.deepcopy(dict(adopted.values))
    for path in ELSEWHERE:
        *way, last = path.split(".")
        holder: Any = values
        for key in way:
            holder = holder.get(key) or {}
        holder.pop(last, None)
    return values


@pytest.mark.embedded
def test_an_adopted_pytorchjob_has_its_pods_ranks_and_devices(
    release: ReleaseFactory, adopt_case: AdoptCase
) -> None:
    adopted = adopt_case("pytorchjob", {})
    job = release(adopted.chart, name=adopted.release, values={**values_here(adopted), **ACCOUNT})
    assert job.differences() == ()
    workers = [pod for pod in job.pods() if pod.role == "worker" and pod.is_live]
    assert {pod.hostname for pod in workers} == {"vision-r1-0", "vision-r1-1"}
    assert len({pod.node for pod in workers}) == 2
    assert {(pod.resources["nvidia.com/gpu"], pod.resources["vpc.amazonaws.com/efa"]) for pod in workers} == {
        ("8", "4")
    }


@pytest.mark.embedded
@pytest.mark.whole
@pytest.mark.usefixtures("mpi_operator")
@pytest.mark.parametrize(
    ("case", "given", "roles", "gpus"),
    [
        ("elastic-pytorchjob", {}, {"worker": 2}, "1"),
        ("a-pytorchjob-whose-master-says-more", {}, {"worker": 4}, None),
        ("the-first-mpijob", FULL_NODES, {"launcher": 1, "worker": 2}, "8"),
        ("a-trainjob-with-its-runtime", ACCOUNT, {"worker": 3}, "8"),
        ("jobset", FULL_NODES, {"worker": 4}, "8"),
        ("volcano-with-mpirun", {}, {"launcher": 1, "worker": 2}, None),
        ("statefulset", {}, {"worker": 2}, None),
        ("hyperpod", FULL_NODES, {"worker": 5}, "8"),
        ("paddlejob-with-servers", {}, {"trainer": 3, "pserver": 2}, None),
    ],
)
def test_an_adopted_job_has_the_pods_and_devices_of_its_manifest(
    case: str,
    given: Mapping[str, Any],
    roles: Mapping[str, int],
    gpus: str | None,
    cluster: EmbeddedCluster,
    test_namespace: str,
    release: ReleaseFactory,
    adopt_case: AdoptCase,
) -> None:
    adopted = adopt_case(case, given)
    for claim in adopted.values.get("claims") or ():
        cluster.add_claim(claim["claimName"], test_namespace)
    job = release(adopted.chart, values=values_here(adopted))
    assert job.differences() == ()
    live = [
        pod for pod in job.pods() if pod.is_live and pod.role in ("launcher", "worker", "trainer", "pserver")
    ]
    assert Counter(pod.role for pod in live) == roles
    trained = [pod for pod in live if pod.role in ("worker", "trainer")]
    assert {pod.resources.get("nvidia.com/gpu") for pod in trained} == {gpus}
