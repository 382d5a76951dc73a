"""What the tests of AWS's CSI drivers share: the real provisioner, and what became of claims."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bireme.clusters.base import Cluster
from bireme.tools import Toolbox
from tests.support import waiting

DRIVERS, CLASSES = "/apis/storage.k8s.io/v1/csidrivers", "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"
SECONDS = 120


@contextlib.contextmanager
def short_folder(prefix: str) -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    made = Path(tempfile.mkdtemp(prefix=prefix))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def running(
    command: list[str | Path], env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose output goes to ``log``, killed at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def provisioning(
    cluster: Cluster,
    toolbox: Toolbox,
    name: str,
    command: list[str | Path],
    env: Mapping[str, str],
    folder: Path,
) -> Iterator[Path]:
    """The driver ``name`` and the provisioner at work for the cluster; the value is the driver's log.

    ``command`` starts the driver, which listens at csi.sock in ``folder``.
    """
    address, log = folder / "csi.sock", folder / "driver.log"
    provisioner: list[str | Path] = [
        toolbox.path("csi-provisioner"),
        f"--csi-address={address}",
        f"--kubeconfig={cluster.kubeconfig}",
        "--extra-create-metadata",
        # A stand-in for AWS makes a second volume when the provisioner asks again, as it does after 10 s.
        "--timeout=5m",
        "--retry-interval-start=200ms",
        "--retry-interval-max=1s",
    ]
    cluster.api.create(DRIVERS, {"metadata": {"name": name}, "spec": {"attachRequired": False}})
    try:
        with running(command, env, log) as process:
            waiting.until(lambda: address.exists() or process.poll() is not None, SECONDS)
            assert process.poll() is None, log.read_text()
            with running(provisioner, {"PATH": os.environ["PATH"]}, folder / "provisioner.log"):
                yield log
    finally:
        cluster.api.delete(f"{DRIVERS}/{name}")


def claims_path(namespace: str) -> str:
    """The API path of a namespace's claims."""
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"


def volumes_of(cluster: Cluster, driver: str, namespace: str) -> dict[str, dict[str, Any]]:
    """What the driver made for a namespace, by claim: the ``csi`` part of the volumes."""
    return {
        item["spec"]["claimRef"]["name"]: item["spec"]["csi"]
        for item in cluster.api.get(VOLUMES)["items"]
        if item["spec"].get("csi", {}).get("driver") == driver
        and item["spec"]["claimRef"]["namespace"] == namespace
    }


def is_bound(cluster: Cluster, namespace: str, claim: str) -> bool:
    """Whether a claim has its volume."""
    found = cluster.api.find(f"{claims_path(namespace)}/{claim}")
    return found is not None and found["status"].get("phase") == "Bound"


def said(cluster: Cluster, namespace: str, claim: str, words: str) -> bool:
    """Whether an event of the provisioner says these words about a claim."""
    return any(
        words in event.get("message", "")
        for event in cluster.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
        if event["involvedObject"].get("name") == claim and event.get("reason") == "ProvisioningFailed"
    )


@contextlib.contextmanager
def claim_by_hand(
    cluster: Cluster, namespace: str, claim: str, driver: str, parameters: Mapping[str, str], mode: str
) -> Iterator[None]:
    """A claim and its StorageClass with these parameters, past any chart; both go at the end."""
    name = f"{namespace}.{claim}"
    made = {"provisioner": driver, "parameters": dict(parameters)}
    cluster.api.create(CLASSES, {"metadata": {"name": name}, **made})
    spec = {
        "accessModes": [mode],
        "storageClassName": name,
        "resources": {"requests": {"storage": "1200Gi"}},
    }
    cluster.api.create(claims_path(namespace), {"metadata": {"name": claim}, "spec": spec})
    try:
        yield
    finally:
        for path in (f"{claims_path(namespace)}/{claim}", f"{CLASSES}/{name}"):
            with contextlib.suppress(Exception):
                cluster.api.delete(path)
