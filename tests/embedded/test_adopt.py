"""Jobs of other kinds that were adopted run on a control plane as their manifests say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from bireme.adopt.jobs import Adopter
from bireme.audit.documents import read
from bireme.core.paths import Paths
from bireme.helm import Renderer
from bireme.plan.instances import Instance
from bireme.testing.pytest_plugin import ReleaseFactory

CASES = yaml.safe_load((Path(__file__).parents[1] / "render/adopt.yaml").read_text())


@pytest.mark.embedded
def test_an_adopted_pytorchjob_has_its_pods_ranks_and_devices(
    release: ReleaseFactory,
    renderer: Renderer,
    bireme_paths: Paths,
    instances: Mapping[str, Instance],
    tmp_path: Path,
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(CASES["pytorchjob"]["manifest"])
    [document], _ = read([str(file)], {})
    adopted = Adopter(renderer, bireme_paths.charts, instances, {}).adopt(document)
    # The pool, the queue, the account and Secrets of the manifest are not on this cluster.
    there = {key: each for key, each in adopted.values.items() if key not in ("nodeSelector", "queue")}
    account = {"serviceAccount": {"create": True, "name": "trainer"}}
    values = {**there, **account, "pod": {**there["pod"], "hostNetwork": False}}
    job = release(adopted.chart, name=adopted.release, values=values)
    assert job.differences() == ()
    workers = [pod for pod in job.pods() if pod.role == "worker" and pod.is_live]
    assert {pod.hostname for pod in workers} == {"vision-r1-0", "vision-r1-1"}
    assert len({pod.node for pod in workers}) == 2
    assert {(pod.resources["nvidia.com/gpu"], pod.resources["vpc.amazonaws.com/efa"]) for pod in workers} == {
        ("8", "4")
    }
