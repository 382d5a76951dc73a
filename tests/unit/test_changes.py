"""What an upgrade will do to a live release, object by object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bireme.core.manifests import Manifest
from bireme.plan.changes import changes
from bireme.plan.object_diff import object_diffs

DIGESTS = {"image": "a", "env": "b", "volumes": "c"}


def thing(kind: str, name: str, spec: Any = None, annotations: Any = None, **fields: Any) -> Manifest:
    metadata = {"name": name, "annotations": annotations or {}, "labels": fields.pop("labels", {})}
    return Manifest({"kind": kind, "metadata": metadata, **({"spec": spec} if spec else {}), **fields})


def job(workers: int = 3, run: int = 1, digests: Any = None, labels: Any = None, **spec: Any) -> Manifest:
    counts = {"completionMode": "Indexed", "completions": workers, "parallelism": workers}
    kept = {"bireme/immutable": json.dumps(DIGESTS | (digests or {}))}
    return thing("Job", f"imagenet-r{run}", {**counts, **spec}, kept, labels=labels or {})


def members(replicas: int = 3, **spec: Any) -> Manifest:
    return thing("StatefulSet", "etcd", {"replicas": replicas, "serviceName": "peers", **spec})


def mpi_job(
    workers: int = 3, run: int = 1, worker: Any = None, launcher: Any = None, **policy: Any
) -> Manifest:
    roles = {
        "Worker": {"replicas": workers, "template": worker or {}},
        "Launcher": {"template": launcher or {}},
    }
    return thing("MPIJob", f"maskrcnn-r{run}", {"runPolicy": policy, "mpiReplicaSpecs": roles})


def sentences(current: list[Manifest], desired: list[Manifest]) -> list[str]:
    return changes(current, desired).sentences()


def test_an_upgrade_without_changes_lists_every_workload() -> None:
    found = changes([job(), members(), thing("Service", "s")], [thing("Service", "s"), members(), job()])
    assert found.sentences() == ["Job/imagenet-r1: nothing", "StatefulSet/etcd: nothing"]
    assert not found.is_refused
    assert sentences([thing("Service", "s")], [thing("Service", "s")]) == ["nothing changes"]


def test_another_number_of_workers_scales_in_place() -> None:
    found = changes([job(3)], [job(5)])
    assert found.sentences() == ["Job/imagenet-r1: scale in place 3 → 5"]
    assert (found.changes[0].action, found.changes[0].before, found.changes[0].after) == ("scale", 3, 5)


def test_labels_ttl_deadline_and_suspend_update_in_place() -> None:
    new = job(labels={"queue": "a"}, ttlSecondsAfterFinished=60, activeDeadlineSeconds=9, suspend=True)
    assert sentences([job()], [new]) == ["Job/imagenet-r1: update in place (labels, deadline, suspend, ttl)"]


def test_another_run_replaces_the_job() -> None:
    found = changes([job(3)], [job(4, run=2, digests={"image": "x"})])
    assert found.sentences() == [
        "Job/imagenet-r2: replace: run r1 → r2; r1 must be stopped first (job.suspend=true)"
    ]
    assert [change.action for change in found.changes] == ["replace"]
    assert not found.is_refused


def test_a_changed_immutable_part_is_refused_with_its_name_and_the_next_run() -> None:
    found = changes([job(run=4)], [job(run=4, digests={"image": "x", "env": "y", "claims": "new"})])
    assert found.is_refused
    assert found.sentences() == [
        "Job/imagenet-r4: refused: claims, env, image change, and Kubernetes does not change that in place; "
        "needs run=5 (bireme install --replace stops run r4 and starts run r5)"
    ]
    assert found.changes[0].parts == ("claims", "env", "image")


@pytest.mark.parametrize("kept", [None, {"bireme/immutable": "no json"}, {"bireme/immutable": "[]"}])
def test_a_job_without_digests_is_judged_by_its_fields(kept: Any) -> None:
    def plain(**spec: Any) -> Manifest:
        counts = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": {"a": 1}}
        return thing("Job", "stage", {**counts, **spec}, kept)

    assert sentences([plain()], [plain(completions=3, parallelism=3)]) == ["Job/stage: scale in place 2 → 3"]
    refused = changes([plain()], [plain(template={"a": 2}, podFailurePolicy={})])
    assert refused.changes[0].parts == ("podFailurePolicy", "template")
    assert "uninstall the release" in refused.sentences()[0]
    assert changes([plain()], [plain(completions=3)]).changes[0].parts == ("completions",)


def test_an_mpi_job_scales_in_place_and_its_templates_wait_for_new_pods() -> None:
    assert sentences([mpi_job(3)], [mpi_job(5)]) == ["MPIJob/maskrcnn-r1: scale in place 3 → 5"]
    assert sentences([mpi_job()], [mpi_job()]) == ["MPIJob/maskrcnn-r1: nothing"]
    assert sentences([mpi_job()], [mpi_job(suspend=True, worker={"x": 1}, launcher={"y": 1})]) == [
        "MPIJob/maskrcnn-r1: update in place (a launcher not made yet, suspend, workers made from now on)"
    ]
    assert sentences([mpi_job()], [mpi_job(run=2)]) == [
        "MPIJob/maskrcnn-r2: replace: run r1 → r2; r1 must be stopped first (job.suspend=true)"
    ]


def test_a_stateful_set_scales_and_rolls_but_keeps_its_claims_and_service() -> None:
    assert sentences([members(1)], [members(3)]) == ["StatefulSet/etcd: scale in place 1 → 3"]
    assert sentences([members()], [members(template={"x": 1})]) == [
        "StatefulSet/etcd: update in place (pods, one by one)"
    ]
    found = changes([members()], [members(volumeClaimTemplates=[1], serviceName="other")])
    assert found.is_refused
    assert found.changes[0].parts == ("serviceName", "volumeClaimTemplates")


def test_added_and_removed_objects_are_named_but_hooks_are_not() -> None:
    hook = thing("Pod", "test", annotations={"helm.sh/hook": "test"})
    current = [thing("Service", "old"), job(run=1)]
    desired = [thing("ConfigMap", "new"), hook]
    assert sentences(current, desired) == [
        "Job/imagenet-r1: removed",
        "ConfigMap/new: added",
        "Service/old: removed",
    ]


def test_an_immutable_config_map_is_refused_and_another_updated() -> None:
    assert sentences(
        [thing("ConfigMap", "c", data={"a": "1"})], [thing("ConfigMap", "c", data={"a": "2"})]
    ) == ["ConfigMap/c: update in place (data)"]
    sealed = changes(
        [thing("ConfigMap", "c", data={"a": "1"}, immutable=True)],
        [thing("ConfigMap", "c", data={"a": "2"}, immutable=True)],
    )
    assert sealed.is_refused


def test_a_key_generated_on_the_cluster_is_no_change() -> None:
    kept = {"bireme/generated": "data"}
    live, wanted = (
        thing("Secret", "ssh", annotations=kept, data={"a": "1"}),
        thing("Secret", "ssh", None, kept),
    )
    assert sentences([live], [wanted]) == ["nothing changes"]
    assert object_diffs([live], [thing("Secret", "ssh", None, kept, data={"a": "2"})]) == ()
    assert sentences([thing("Secret", "ssh", data={"a": "1"})], [thing("Secret", "ssh")]) == [
        "Secret/ssh: update in place (data)"
    ]


def test_a_deployment_can_change_its_pods_but_not_its_selector() -> None:
    one, two = ({"replicas": 1, "selector": {"app": name}, "template": {}} for name in "ab")
    assert changes([thing("Deployment", "d", one)], [thing("Deployment", "d", two)]).changes[0].parts == (
        "selector",
    )
    rolled = {**one, "template": {"x": 1}, "replicas": 2}
    assert sentences([thing("Deployment", "d", one)], [thing("Deployment", "d", rolled)]) == [
        "Deployment/d: scale in place 1 → 2, update in place (pods, one by one)"
    ]


def test_a_diff_has_the_lines_of_the_objects_that_change_alone() -> None:
    script = thing("ConfigMap", "files", data={"train.py": "a = 1\nb = 2\n"})
    edited = thing("ConfigMap", "files", data={"train.py": "a = 1\nb = 3\n"})
    (found,) = object_diffs([script, members()], [edited, members()])
    assert found.object == "ConfigMap/files"
    assert [line for line in found.lines if line[:1] in "+-"] == ["-    b = 2", "+    b = 3"]


def test_a_diff_shows_objects_that_come_and_go_whole() -> None:
    gone, come = object_diffs([thing("Service", "a")], [thing("Service", "b")])
    assert {line[:1] for line in gone.lines} == {"@", "-"}
    assert {line[:1] for line in come.lines} == {"@", "+"}


def test_an_object_that_names_the_namespace_of_the_release_from_now_on_is_the_same() -> None:
    before, after = members(3), members(4).thaw()
    after["metadata"]["namespace"] = "team"
    named = Manifest(after)
    told = ["StatefulSet/etcd: scale in place 3 → 4, update in place (namespace)"]
    assert changes([before], [named], "team").sentences() == told
    [found] = object_diffs([before], [named], "team")
    assert "+  replicas: 4" in found.lines
    assert len(object_diffs([before], [named], "other")) == 2


def test_a_diff_hides_the_values_of_secrets_and_says_which_change() -> None:
    before = thing("Secret", "login", data={"user": "cm9vdA==", "password": "c2VjcmV0"})
    after = thing("Secret", "login", data={"user": "cm9vdA==", "password": "b3RoZXI="})
    (found,) = object_diffs([before], [after])
    assert [line.strip() for line in found.lines if "password" in line or "user" in line] == [
        "user: (hidden)",
        "-  password: (hidden, before)",
        "+  password: (hidden, after)",
    ]


def test_a_diff_leaves_out_the_digests_of_parts_that_it_shows() -> None:
    before = thing("Job", "a", annotations={"bireme/immutable": '{"image":"1"}'}, spec={"image": "old"})
    after = thing("Job", "a", annotations={"bireme/immutable": '{"image":"2"}'}, spec={"image": "new"})
    (found,) = object_diffs([before], [after])
    assert [line.strip() for line in found.lines if line[:1] in "+-"] == ["-  image: old", "+  image: new"]
