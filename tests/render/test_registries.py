"""Where images are pulled from, and that `make images` pushes there."""

from __future__ import annotations

import re

import publish

from bireme.helm import Render
from bireme.plan.workloads import pod_templates
from tests.render.cases import CASES, ROOT, Matrix
from tests.support.rendered import RenderChart


def images(rendered: Render) -> set[str]:
    return {
        container["image"]
        for item in rendered.manifests
        for template in pod_templates(item)
        for key in ("initContainers", "containers")
        for container in template["spec"].get(key, ())
    }


def test_a_global_registry_replaces_every_registry(render: RenderChart) -> None:
    found = images(render("torch-elastic", sets=["global.imageRegistry=registry.example.com"]))
    assert len(found) >= 3
    assert {image.split("/")[0] for image in found} == {"registry.example.com"}


def test_each_upstream_can_have_a_registry_of_its_own(render: RenderChart) -> None:
    """As for a pull-through cache of ECR, which has a prefix for each upstream."""
    registries = {
        "docker.io": "ecr.example.com/docker-hub",
        "docker.io/pytorch": "ecr.example.com/torch",
        "quay.io": "ecr.example.com/quay",
        "quay": "other.example.com",
    }
    sets = ["global.imageRegistry=rest.example.com"]
    values = {"global": {"imageRegistries": registries}}
    found = {image.split(":")[0] for image in images(render("torch-elastic", sets=sets, values=values))}
    assert found == {
        "ecr.example.com/docker-hub/library/python",
        "ecr.example.com/torch/pytorch/pytorch",
        "ecr.example.com/quay/coreos/etcd",
    }
    ours = ["image.registry=", "image.repository=bireme/torch", "image.tag=0.1.0"]
    assert "rest.example.com/bireme/torch:0.1.0" in images(render("torch-elastic", sets=[*sets, *ours]))


def test_digests_by_name_and_tag_win_over_tags(render: RenderChart) -> None:
    """As `make digests` prints them, also for the etcd of the job."""
    tagged = images(render("torch-elastic"))
    digests = {image: f"sha256:{index:064x}" for index, image in enumerate(sorted(tagged))}
    values = {"global": {"imageDigests": digests, "imageRegistry": "registry.example.com"}}
    found = images(render("torch-elastic", values=values))
    assert len(tagged) >= 3
    in_registry = {image.split(":")[0].partition("/")[2]: digest for image, digest in digests.items()}
    assert found == {f"registry.example.com/{name}@{digest}" for name, digest in in_registry.items()}


def pushed_by(scripts: list[str]) -> set[str]:
    """What is in the registry afterwards."""
    return set(re.findall(r"(?:--tag|^crane copy \S+) (\S+)", "\n".join(scripts), re.MULTILINE))


def test_with_a_mirror_what_is_pulled_is_what_was_pushed(render: RenderChart) -> None:
    """The README's command, with the one value that `make images MIRROR=1` is for."""
    pushed = pushed_by(publish.steps("ghcr.io/team", ROOT, mirror=True))
    rendered = render(
        "torch-elastic",
        instance="p4d.24xlarge",
        workload="imagenet-efa",
        sets=["workers=3", "global.imageRegistry=ghcr.io/team"],
    )
    assert images(rendered) <= pushed


def test_a_mirror_has_every_image_of_others_that_ci_values_name(matrix: Matrix) -> None:
    rendered = {image for case in CASES if case.ci for image in images(matrix(case))}
    plugin = "/eks/aws-efa-k8s-device-plugin:"  # It has a registry for each region.
    wanted = {image for image in rendered if "bireme/" not in image and plugin not in image}
    wanted.add("nvcr.io/nvidia/k8s-device-plugin:v0.19.0")  # Of the walkthroughs.
    assert len(wanted) >= 7
    said = [
        line for script in publish.steps("ghcr.io/team", ROOT, mirror=True) for line in script.splitlines()
    ]
    copies = [line.split()[2:] for line in said if line.startswith("crane copy ")]
    sources = {source for source, _ in copies}
    (of_eks,) = (source for source in sources if "/eks/" in source)
    assert sources - {of_eks} == wanted
    assert of_eks.startswith(f"602401143452.dkr.ecr.us-west-2.amazonaws.com{plugin}v")
    for source, target in copies:
        assert target == f"ghcr.io/team/{source.split('/', 1)[1]}"


def test_without_a_mirror_only_our_images_are_pulled_from_there(render: RenderChart) -> None:
    pushed = pushed_by(publish.steps("ghcr.io/team", ROOT))
    rendered = render(
        "torch-elastic",
        instance="p4d.24xlarge",
        workload="imagenet-efa",
        sets=["workers=3", "global.imageRegistries.bireme=ghcr.io/team"],
    )
    ours = {image for image in images(rendered) if "bireme" in image}
    assert ours
    assert ours <= pushed
    hosts = {image.split("/")[0] for image in images(rendered) - ours}
    assert hosts == {"docker.io", "quay.io"}
