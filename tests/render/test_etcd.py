"""The objects of an etcd release."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bireme.helm import Render
from tests.support.rendered import RenderChart


def test_only_generated_passwords_are_hashed_at_the_lowest_cost(render: RenderChart) -> None:
    def cost(*sets: str) -> object:
        found = render("etcd", sets=list(sets)).manifests
        config = next(item for item in found if "etcd.json" in item.get("data", {}))
        return json.loads(config["data"]["etcd.json"]).get("bcrypt-cost")

    assert cost("auth.enabled=true") == 4
    assert cost("auth.enabled=true", "auth.existingSecret=people") is None
    assert cost("auth.enabled=false") is None


def manifest(rendered: Render, kind: str, name: str) -> Mapping[str, Any]:
    return next(item for item in rendered.manifests if (item.kind, item.name) == (kind, name))


def test_with_a_server_certificate_only_clients_need_none(render: RenderChart) -> None:
    rendered = render("etcd", sets=["tls.serverSecret=server"], release="safe")
    config = json.loads(manifest(rendered, "ConfigMap", "safe")["data"]["etcd.json"])
    assert config["client-transport-security"]["client-cert-auth"] is False
    (volume,) = [v for v in manifest(rendered, "Pod", "safe-test")["spec"]["volumes"] if "secret" in v]
    assert [item["key"] for item in volume["secret"]["items"]] == ["ca.crt"]


def test_certificates_have_the_names_of_the_most_members_possible(render: RenderChart) -> None:
    rendered = render("etcd", files=["charts/etcd/ci/cert-manager-values.yaml"], release="safe")
    certificates = {item.name: item["spec"] for item in rendered.manifests if item.kind == "Certificate"}
    assert set(certificates) == {"safe-server-tls", "safe-client-tls", "safe-peer-tls"}
    for use in ("server", "peer"):
        names = certificates[f"safe-{use}-tls"]["dnsNames"]
        assert {f"safe-{ordinal}.safe-peers.default.svc" for ordinal in range(5)} < set(names)
        assert "commonName" not in certificates[f"safe-{use}-tls"]
        assert "client auth" in certificates[f"safe-{use}-tls"]["usages"]


def test_a_job_uses_the_tls_settings_of_its_own_etcd(render: RenderChart) -> None:
    tls = ["etcd.tls.serverSecret=server", "etcd.tls.clientSecret=client"]
    rendered = render("torch-elastic", sets=tls, release="job")
    for pod in (
        manifest(rendered, "Job", "job-r1")["spec"]["template"],
        manifest(rendered, "Pod", "job-test"),
    ):
        env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        assert env["BIREME_ETCD_CACERT"] == "/bireme/etcd-tls/ca.crt"
        assert env["BIREME_ETCD_CERT"] == "/bireme/etcd-tls/tls.crt"
        secrets = {v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v}
        assert secrets == {"client"}


def test_snapshots_are_saved_to_s3_and_restored_from_it(render: RenderChart) -> None:
    restore = ["restore.enabled=true", "restore.url=s3://snapshots/etcd", "s3.existingSecret=keys"]
    rendered = render("etcd", files=["charts/etcd/ci/s3-values.yaml"], sets=restore, release="safe")
    job = manifest(rendered, "CronJob", "safe-backup")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert job["serviceAccountName"] == "safe"
    saver = job["containers"][0]
    member = manifest(rendered, "StatefulSet", "safe")["spec"]["template"]["spec"]
    fetcher, restorer = member["initContainers"][:2]
    assert list(saver["command"]) == ["python3", "-m", "bireme_runtime.etcd.s3.backup", "save", "/snapshots"]
    assert list(fetcher["command"])[3:] == ["fetch", "/snapshots", "latest.db"]
    assert "/snapshots/latest.db" in restorer["command"]
    for container in (saver, fetcher):
        env = {each["name"]: each for each in container["env"]}
        assert env["BIREME_BACKUP_URL"]["value"] == "s3://snapshots/etcd"
        assert env["AWS_REGION"]["value"] == "eu-west-1"
        assert env["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"]["name"] == "keys"
    for pod in (job, member):
        assert [dict(v["emptyDir"]) for v in pod["volumes"] if v["name"] == "snapshots"] == [{}]
        (volume,) = [v for v in pod["volumes"] if v["name"] == "runtime"]
        (runtime,) = [source["configMap"]["name"] for source in volume["projected"]["sources"]]
        files = set(manifest(rendered, "ConfigMap", runtime)["data"])
        assert {"bireme_runtime__etcd__s3__backup.py", "bireme_runtime__sources__source.py"} < files


def test_only_the_container_that_looks_for_data_sees_the_claim_of_the_snapshot(render: RenderChart) -> None:
    sets = ["restore.enabled=true", "restore.claimName=snapshots", "restore.subPath=prod"]
    member = manifest(render("etcd", sets=sets, release="safe"), "StatefulSet", "safe")["spec"]["template"][
        "spec"
    ]
    (claim,) = [v["name"] for v in member["volumes"] if "persistentVolumeClaim" in v]
    containers = [*member["initContainers"], *member["containers"]]
    users = [
        each["name"] for each in containers if claim in [m["name"] for m in each.get("volumeMounts", ())]
    ]
    assert users == ["fetch"]
    fetcher = member["initContainers"][0]
    assert list(fetcher["command"])[3:] == ["fetch", "/claim", "/snapshots", "latest.db"]
    (mount,) = [dict(m) for m in fetcher["volumeMounts"] if m["name"] == claim]
    assert mount == {"name": claim, "mountPath": "/claim", "readOnly": True, "subPath": "prod"}
