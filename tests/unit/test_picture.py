"""The plan as a picture: valid SVG, a square for every accelerator, and long plans shortened."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping

import pytest

from bireme.core.manifests import Manifest
from bireme.plan.instances import Instance
from bireme.plan.picture import svg
from bireme.plan.topology import expand

SVG = "{http://www.w3.org/2000/svg}"
P4D = "p4d.24xlarge"


def job(workers: int, gpus: int = 8, processes: str = "8", efa: int = 4) -> Manifest:
    container = {
        "name": "train",
        "env": [{"name": "PET_NPROC_PER_NODE", "value": processes}, {"name": "PET_NNODES", "value": "1:9"}],
        "resources": {"requests": {"nvidia.com/gpu": gpus, "vpc.amazonaws.com/efa": efa}},
    }
    pod = {"containers": [container], "nodeSelector": {"node.kubernetes.io/instance-type": P4D}}
    labels = {"app.kubernetes.io/component": "worker"}
    counts = {"completionMode": "Indexed", "completions": workers, "parallelism": workers}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return Manifest(
        {"kind": "Job", "metadata": {"name": "train-r1"}, "spec": {**counts, "template": template}}
    )


def etcd(replicas: int) -> Manifest:
    pod = {"containers": [{"name": "etcd", "resources": {"requests": {"cpu": "100m"}}}]}
    spec = {"replicas": replicas, "template": {"spec": pod}}
    return Manifest({"kind": "StatefulSet", "metadata": {"name": "etcd"}, "spec": spec})


def drawn(instances: Mapping[str, Instance], *manifests: Manifest, release: str = "train") -> ET.Element:
    return ET.fromstring(svg(expand(release, "default", manifests, instances)))


def words(picture: ET.Element) -> list[str]:
    return ["".join(text.itertext()) for text in picture.iter(f"{SVG}text")]


def ranks(picture: ET.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text") if text.get("class") == "rank"]


def free_slots(picture: ET.Element) -> int:
    return sum(rect.get("class") == "free" for rect in picture.iter(f"{SVG}rect"))


def test_each_accelerator_shows_the_world_rank_that_uses_it(instances: Mapping[str, Instance]) -> None:
    picture = drawn(instances, job(3), etcd(1))
    assert ranks(picture) == [str(rank) for rank in range(24)]
    texts = words(picture)
    assert "Job/train-r1 × 3, 1 to 9" in texts
    assert "3 × p4d.24xlarge" in texts
    assert {"node 1, 4 EFA", "train-r1-2", "etcd-0"} <= set(texts)
    assert texts[-1] == "4 pods, 24 accelerators, 12 EFA, nodes: 3 × p4d.24xlarge"


def test_unused_accelerators_are_empty_slots(instances: Mapping[str, Instance]) -> None:
    picture = drawn(instances, job(1, gpus=6, processes="gpu"))
    assert ranks(picture) == list("012345")
    assert free_slots(picture) == 2


def test_ranks_are_left_out_where_processes_are_not_one_per_accelerator(
    instances: Mapping[str, Instance],
) -> None:
    assert ranks(drawn(instances, job(2, processes="1"))) == []


@pytest.mark.parametrize(("workers", "more"), [(16, None), (17, "… 1 more"), (1000, "… 984 more")])
def test_nodes_beyond_16_are_counted_instead_of_drawn(
    workers: int, more: str | None, instances: Mapping[str, Instance]
) -> None:
    picture = drawn(instances, job(workers))
    boxes = [rect for rect in picture.iter(f"{SVG}rect") if rect.get("class") == "node"]
    assert len(boxes) == 16
    assert [text for text in words(picture) if text.startswith("…")] == ([more] if more else [])


def test_long_lists_of_pods_are_shortened(instances: Mapping[str, Instance]) -> None:
    texts = words(drawn(instances, job(4, gpus=1, processes="1", efa=1), etcd(9)))
    assert texts.count("… 1 more") == 2


def test_names_are_escaped_in_the_picture(instances: Mapping[str, Instance]) -> None:
    assert "<a&b> in namespace default" in words(drawn(instances, release="<a&b>"))


def test_the_picture_fits_light_and_dark_pages_and_stays_within_its_frame(
    instances: Mapping[str, Instance],
) -> None:
    picture = drawn(instances, job(5), etcd(3))
    assert "prefers-color-scheme: dark" in (picture.find(f"{SVG}style").text or "")  # type: ignore[union-attr]
    height = int(picture.get("height", "0"))
    tops = [int(group.get("transform", "").split()[-1].rstrip(")")) for group in picture.findall(f"{SVG}g")]
    assert tops == sorted(tops)
    assert tops[-1] < height
