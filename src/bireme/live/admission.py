"""What an API server would refuse of a job before any node is looked at: version, rights, quotas, pods."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from bireme.clusters.api import Api, ApiError
from bireme.core.findings import Finding
from bireme.core.manifests import Manifest
from bireme.core.quantities import format_quantity, quantity
from bireme.plan.queues import resource_sums
from bireme.plan.topology import Plan

OLDEST = (1, 32)
"""The oldest Kubernetes that the charts accept, as in their Chart.yaml."""
_REFUSED = (403, 422)
_PLAIN = ("cpu", "memory", "ephemeral-storage")


def version(api: Api) -> Iterator[Finding]:
    """A cluster that is older than the charts accept. Raises ApiError."""
    found = re.match(r"v?(\d+)\.(\d+)", str(api.get("/version").get("gitVersion", "")))
    if found and (int(found[1]), int(found[2])) < OLDEST:
        oldest = f"{OLDEST[0]}.{OLDEST[1]}"
        yield Finding(
            "version",
            f"The cluster is Kubernetes {found[1]}.{found[2]}, and the charts need {oldest} or newer",
            f"aws eks update-cluster-version --name CLUSTER --kubernetes-version {oldest}",
        )


def rights(api: Api, manifests: Iterable[Manifest], namespace: str) -> Iterator[Finding]:
    """Kinds that the user may not create, by access reviews, which change nothing. Raises ApiError."""
    # Helm keeps its releases in Secrets.
    wanted = {("v1", "Secret"), *((each.api_version, each.kind) for each in manifests)}
    for kind_version in sorted({version for version, _ in wanted}):
        group = kind_version.rpartition("/")[0]
        served = api.find(f"/apis/{kind_version}" if group else f"/api/{kind_version}") or {}
        for each in served.get("resources", ()):
            if (kind_version, each["kind"]) not in wanted or "/" in each["name"]:
                continue
            where = {"namespace": namespace} if each["namespaced"] else {}
            asked = {"verb": "create", "group": group, "resource": each["name"], **where}
            review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            if not api.create(review, {"spec": {"resourceAttributes": asked}})["status"]["allowed"]:
                inside = f" in namespace {namespace}" if where else ""
                option = f" --namespace {namespace}" if where else ""
                yield Finding(
                    "rights",
                    f"You may not create {each['name']}{inside}, which an install makes",
                    f"kubectl auth can-i create {each['name']}{'.' if group else ''}{group}{option}",
                )


def quotas(api: Api, plan: Plan) -> Iterator[Finding]:
    """ResourceQuotas of the namespace with too little room for all pods of the plan. Raises ApiError."""
    return too_small(api.items(f"/api/v1/namespaces/{plan.namespace}/resourcequotas"), plan)


def too_small(items: Iterable[Mapping[str, Any]], plan: Plan) -> Iterator[Finding]:
    """The ResourceQuotas ``items`` that have too little room for all pods of the plan."""
    amounts = {name: quantity(amount) for name, amount in resource_sums(plan.pods).items()}
    count = Fraction(len(plan.pods))
    asks = {f"requests.{name}": amount for name, amount in amounts.items()}
    asks |= {name: amounts[name] for name in _PLAIN if name in amounts} | {"pods": count, "count/pods": count}
    for item in items:
        if item["spec"].get("scopes") or item["spec"].get("scopeSelector"):
            continue  # It counts some pods only.
        name, used = item["metadata"]["name"], (item.get("status") or {}).get("used") or {}
        for resource, hard in (item["spec"].get("hard") or {}).items():
            free = quantity(hard) - quantity(used.get(resource, "0"))
            if asks.get(resource, Fraction(0)) > free:
                of = resource.removeprefix("requests.")
                yield Finding(
                    "quotas",
                    f"The quota {name} of namespace {plan.namespace} has {format_quantity(of, free)} of "
                    f"{hard} {resource} left, and the job asks for {format_quantity(of, asks[resource])}",
                    f"kubectl describe resourcequota {name} --namespace {plan.namespace}",
                )


def pods(api: Api, specs: Sequence[Mapping[str, Any]], own: set[str], namespace: str) -> Iterator[Finding]:
    """What admission says to the job's pods, by a dry run of one of each: Pod Security, limits, classes.

    ``own`` are the ServiceAccounts that the install makes. Raises ApiError.
    """
    said = set()
    for spec in specs:
        body = dict(spec)
        if body.get("serviceAccountName") in own:
            del body["serviceAccountName"]
        body["volumes"] = [*body.get("volumes", ()), *_claimed(body)]
        names = "+".join(each["name"] for each in spec["containers"])
        pod = {"metadata": {"generateName": "bireme-doctor-"}, "spec": body}
        try:
            api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
        except ApiError as error:
            text = str(error)
            if error.status == 404:
                yield Finding(
                    "namespace", f"There is no namespace {namespace}", f"kubectl create namespace {namespace}"
                )
                return
            if error.status not in _REFUSED or 'cannot create resource "pods"' in text:
                if error.status not in (401, 403):
                    raise
                return  # Who may not create pods lets the Job's controller do it; nothing can be tried.
            if "exceeded quota" in text:
                continue  # quotas() says more.
            why = text.rpartition("is forbidden: ")[2] or text
            if why not in said:
                said.add(why)
                yield Finding(
                    "admission",
                    f"The namespace {namespace} refuses the pod of {names}: {why}",
                    f"kubectl describe namespace {namespace} (its labels, limits and quotas)",
                )


def _claimed(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Stand-ins for volumes of a StatefulSet's claims, which its pods' template does not list."""
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    mounted = {mount["name"] for each in containers for mount in each.get("volumeMounts", ())}
    listed = {volume["name"] for volume in spec.get("volumes", ())}
    yield from ({"name": name, "emptyDir": {}} for name in sorted(mounted - listed))
