"""Empty a cluster before it is deleted, so that AWS keeps nothing that costs: load balancers and volumes.

It lists what it will delete, deletes with --yes, and refuses where data would be lost unless --delete-data
says so. Releases go first, then load balancers, then claims; releases in kube-system, such as the controller
of load balancers, last. It can be repeated at any time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bireme.clusters.api import Api
from bireme.clusters.existing import existing
from bireme.core.errors import BiremeError, run
from bireme.core.paths import Paths
from bireme.live.release import Releases, Revision
from bireme.tools import Toolbox

SYSTEM = "kube-system"
SECONDS = 600


@dataclass(frozen=True)
class Item:
    """An object to delete: its path in the API, a line about it, and which data goes with it, if any."""

    path: str
    line: str
    loses: str = ""


@dataclass(frozen=True)
class Inventory:
    """What is in the cluster."""

    releases: tuple[Revision, ...]
    balancers: tuple[Item, ...]
    claims: tuple[Item, ...]

    @property
    def lines(self) -> list[str]:
        """A line for each thing that will be deleted."""
        releases = [f"release {each.release} in {each.namespace}" for each in self.releases]
        return [*releases, *(each.line for each in (*self.balancers, *self.claims))]


def inventory(api: Api, releases: Releases, namespaces: Sequence[str]) -> Inventory:
    """What there is in ``namespaces``, or in all of them if none is named."""
    listed = [each for name in namespaces for each in releases.list(name)] if namespaces else releases.list()
    return Inventory(
        tuple(sorted(listed, key=lambda each: each.namespace == SYSTEM)),
        tuple(_balancers(api, namespaces)),
        tuple(_claim(api, each) for each in api.among(namespaces, "/api/v1", "persistentvolumeclaims")),
    )


def empty(api: Api, releases: Releases, found: Inventory) -> None:
    """Delete everything of ``found`` and wait until it is gone."""
    for are_last in (False, True):
        for each in found.releases:
            if (each.namespace == SYSTEM) is are_last:
                releases.uninstall(each.release, each.namespace, SECONDS)
        _delete(api, () if are_last else found.balancers)
        _delete(api, () if are_last else found.claims)


def _balancers(api: Api, namespaces: Sequence[str]) -> list[Item]:
    found = []
    for service in api.among(namespaces, "/api/v1", "services"):
        if service["spec"].get("type") == "LoadBalancer":
            found.append(_item("/api/v1", "services", service, "load balancer of Service"))
    for ingress in api.among(namespaces, "/apis/networking.k8s.io/v1", "ingresses"):
        found.append(_item("/apis/networking.k8s.io/v1", "ingresses", ingress, "load balancer of Ingress"))
    return found


def _item(group: str, plural: str, item: dict[str, Any], what: str, loses: str = "") -> Item:
    name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
    path = f"{group}/namespaces/{namespace}/{plural}/{name}"
    return Item(path, f"{what} {name} in {namespace}{f': {loses}' if loses else ''}", loses)


def _claim(api: Api, claim: dict[str, Any]) -> Item:
    name = claim["spec"].get("volumeName")
    volume = api.find(f"/api/v1/persistentvolumes/{name}") if name else None
    loses = ""
    if volume and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
        csi = volume["spec"].get("csi") or {}
        size = (volume["spec"].get("capacity") or {}).get("storage", "")
        loses = f"deletes {csi.get('volumeHandle') or name} ({size}) and its data"
    return _item("/api/v1", "persistentvolumeclaims", claim, "claim", loses)


def _delete(api: Api, items: Sequence[Item]) -> None:
    for item in items:
        api.delete(item.path)
    deadline = time.monotonic() + SECONDS
    while left := [item for item in items if api.find(item.path) is not None]:
        if time.monotonic() > deadline:
            lines = ", ".join(item.line for item in left)
            raise BiremeError(f"after {SECONDS} s there are still: {lines}; see kubectl describe, repeat")
        time.sleep(1)


@click.command(help=__doc__)
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig (default: kubectl's own)")
@click.option("--context", default="", help="Context in the kubeconfig")
@click.option("--namespace", "namespaces", multiple=True, help="Only this namespace; can be repeated")
@click.option("--yes", is_flag=True, help="Delete; without it nothing is deleted")
@click.option("--delete-data", is_flag=True, help="Also where data is lost")
def main(
    kubeconfig: Path | None, context: str, namespaces: tuple[str, ...], yes: bool, delete_data: bool
) -> None:
    cluster = existing(kubeconfig, context)
    releases = Releases(cluster, Toolbox(Paths.discover()))
    found = inventory(cluster.api, releases, namespaces)
    for line in found.lines or ["nothing is left that AWS would keep"]:
        click.echo(line)
    lost = [item for item in found.claims if item.loses]
    if yes and lost and not delete_data:
        names = ", ".join(item.path.rpartition("/")[2] for item in lost)
        raise BiremeError(
            f"nothing was deleted, because this would lose the data of {names}: copy it, or add --delete-data"
        )
    if yes:
        empty(cluster.api, releases, found)
        click.echo(
            "Now delete the cluster: terraform -chdir=hack/eks destroy (with its EFS and FSx file systems), "
            "or eksctl delete cluster --name NAME\n"
            "What stays until you delete it: S3 buckets (aws s3 rb --force s3://BUCKET), repositories in ECR "
            "(aws ecr delete-repository --force --repository-name NAME), log groups in CloudWatch, and a KMS "
            "key that you gave the cluster (aws kms schedule-key-deletion --key-id KEY)"
        )
    elif found.lines:
        click.echo("Nothing was deleted: add --yes")


if __name__ == "__main__":
    run(main)
