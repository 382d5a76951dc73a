"""An etcd with TLS, users and snapshots loses all its members and is restored."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters.kind import KindCluster
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.shell import Shell, Values, until

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("etcd_images")]

CLIENT = """
import os
from bireme_runtime.etcd import client as etcd
client = etcd.client_from(os.environ["BIREME_ETCD_ENDPOINTS"], os.environ)
etcd.wait_until_up(client, 60, print)
"""
PEOPLE = {"root-password": "of-root", "username": "trainer", "password": "of-trainer"}


def certificates(folder: Path, etcd: str, namespace: str) -> dict[str, Path]:
    """A certificate authority, and one certificate with all names that members of ``etcd`` can have.

    It has no common name: etcd's gateway would refuse clients with it as soon as there are users.
    """
    hosts = [f"{etcd}.{namespace}.svc", *(f"{etcd}-{i}.{etcd}-peers.{namespace}.svc" for i in range(5))]
    names = ",".join(f"DNS:{host}" for host in hosts)
    ca_key, ca, key, own = (str(folder / name) for name in ("ca.key", "ca.crt", "tls.key", "tls.crt"))
    # Python is strict: it rejects all certificates of an authority without a key usage.
    new_certificate(ca_key, ca, "/CN=authority", "keyUsage=critical,keyCertSign")
    use = "extendedKeyUsage=serverAuth,clientAuth"
    signed = ("-CA", ca, "-CAkey", ca_key)
    new_certificate(
        key, own, "/O=etcd", f"subjectAltName={names}", use, "basicConstraints=CA:FALSE", by=signed
    )
    return {name: folder / name for name in ("ca.crt", "tls.key", "tls.crt")}


def new_certificate(key: str, file: str, subject: str, *extensions: str, by: tuple[str, ...] = ()) -> None:
    """A key and its certificate, self-signed or signed by an authority."""
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-keyout", key, "-out", file, "-subj", subject, "-days", "1", *by]
    command += [word for extension in extensions for word in ("-addext", extension)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def secured(
    shell: Shell, cluster: KindCluster, kind_values: Values, test_namespace: str, tmp_path: Path
) -> tuple[str, dict[str, Any]]:
    """A release name, and values for three members with TLS and users; their Secrets and claim exist."""
    name = f"safe-{uuid.uuid4().hex[:4]}"
    files = [
        f"--from-file={key}={file}" for key, file in certificates(tmp_path, name, test_namespace).items()
    ]
    users = [f"--from-literal={key}={value}" for key, value in PEOPLE.items()]
    for secret, content in ((f"{name}-tls", files), (f"{name}-users", users)):
        shell.kubectl("create", "secret", "generic", secret, "-n", test_namespace, *content)
    cluster.add_claim("snapshots", test_namespace)
    values = {
        "replicas": 3,
        "persistence": {"enabled": False},
        "tls": dict.fromkeys(("serverSecret", "clientSecret", "peerSecret"), f"{name}-tls"),
        "auth": {"enabled": True, "existingSecret": f"{name}-users"},
        "backup": {"enabled": True, "claimName": "snapshots", "schedule": "@monthly"},
        "defragmentation": {"enabled": True, "schedule": "@monthly"},
    }
    return name, {**kind_values["etcd"], **values}


def run_job(shell: Shell, etcd: InstalledRelease, cronjob: str, code: str = "") -> str:
    """Run a CronJob's container now, or Python code in its place; returns its log."""
    name, where = f"now-{uuid.uuid4().hex[:4]}", ("-n", etcd.namespace)
    made = shell.kubectl(
        "create",
        "job",
        name,
        f"--from=cronjob/{etcd.name}-{cronjob}",
        *where,
        "--dry-run=client",
        "-o",
        "yaml",
    )
    job = yaml.safe_load(made)
    if code:
        job["spec"]["template"]["spec"]["containers"][0]["command"] = ["python3", "-c", CLIENT + code]
    shell.kubectl("apply", *where, "-f", "-", given=yaml.safe_dump(job))
    conditions = ("get", "job", name, *where, "-o", "jsonpath={.status.conditions[*].type}")
    until(lambda: {"Complete", "Failed"} & {*shell.kubectl(*conditions).split()}, what=f"{cronjob} to end")
    log = shell.logs(f"job-name={name}", etcd.namespace)
    assert "Complete" in shell.kubectl(*conditions), log
    return log


def test_all_members_are_lost_and_a_snapshot_brings_data_and_users_back(
    release: ReleaseFactory, shell: Shell, secured: tuple[str, dict[str, Any]]
) -> None:
    name, values = secured
    etcd = release("etcd", name=name, values=values, timeout=240)
    shell.helm("test", name, "-n", etcd.namespace, "--timeout", "2m")
    run_job(shell, etcd, "backup", 'client.put("/ship", "bireme")')
    assert "bytes" in run_job(shell, etcd, "backup")
    assert run_job(shell, etcd, "defragmentation").count("bytes before") == 3

    # The members have no claims, so their data is lost with them.
    etcd.uninstall()
    restored = {**values, "restore": {"enabled": True, "claimName": "snapshots"}}
    etcd = release("etcd", name=name, values=restored, timeout=240)
    look = 'print(client.get("/ship").value, "with", len(client.members()), "members")'
    assert "bireme with 3 members" in run_job(shell, etcd, "backup", look)
    # The users are part of the data: the trainer still has access.
    shell.helm("test", name, "-n", etcd.namespace, "--timeout", "2m")
