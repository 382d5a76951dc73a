"""What keeps a job from running on a cluster, before and after it is installed. It only reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bireme.clusters.api import Api, ApiError
from bireme.core.findings import Finding
from bireme.core.labels import INSTANCE_TYPE_LABEL, ZONE_LABEL
from bireme.core.manifests import Manifest, thaw
from bireme.core.quantities import ACCELERATORS, EFA, HUGE_PAGES, format_quantity, pod_requests, quantity
from bireme.live import admission
from bireme.live.owners import Owners
from bireme.live.pods import container_statuses, shorten
from bireme.live.queue_position import queue_positions, sentence
from bireme.live.release import Revision
from bireme.plan.instances import Instance, admits, other_labels
from bireme.plan.node_health import illness
from bireme.plan.packing import Room, demand_of
from bireme.plan.references import dangling
from bireme.plan.scheduling import takes, tolerated
from bireme.plan.topology import NEVER, Plan, fit
from bireme.plan.workloads import KINDS, images_of, kind_of, pod_templates
from bireme.plan.workloads.model import PodPlan, WorkloadKind

_FORBIDDEN = (401, 403)
_RESTARTS = 3
PROVIDERS = {
    ACCELERATORS[0]: "helm repo add nvdp https://nvidia.github.io/k8s-device-plugin && "
    "helm install nvdp nvdp/nvidia-device-plugin --version 0.19.0 --namespace kube-system "
    "-f values/nvidia-device-plugin.yaml",
    ACCELERATORS[
        1
    ]: "helm install neuron oci://public.ecr.aws/neuron/neuron-helm-chart --namespace kube-system",
    EFA: "helm install efa charts/efa-device-plugin --namespace kube-system",
    HUGE_PAGES: "bireme eksctl --nodes TYPE=NUMBER (the node group sets them aside at boot)",
}
"""What makes nodes offer a resource."""
_SMALL = "instance.threadsPerCore=1 where cores have one thread, or more pod.reserve.cpu or .memoryMiB"
_ADDONS = {"efs.csi.aws.com": "aws-efs-csi-driver", "fsx.csi.aws.com": "aws-fsx-csi-driver"}
# What holds pods to NetworkPolicies, in the spec of its DaemonSet: its name, or the option of AWS's agent.
_ENFORCER = "calico|canal|cilium|antrea|kube-router|ovnkube|anetd|kindnet|--enable-network-policy=true"
_FAULTS = {
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "InvalidImageName": "its image has no valid name",
    "CreateContainerConfigError": "a Secret or ConfigMap that it names is missing",
    "CrashLoopBackOff": "it ends again and again",
}
_ENDS = {
    "BackoffLimitExceeded": "has used up its restarts",
    "MaxFailedIndexesExceeded": "has used up its restarts",
    "DeadlineExceeded": "ran longer than activeDeadlineSeconds",
    "PodFailurePolicy": "ended with a code after which no restart helps",
}


@dataclass(frozen=True)
class Doctor:
    """Looks at one cluster for one job: its plan and its objects, as rendered or as installed."""

    api: Api
    plan: Plan
    manifests: Sequence[Manifest]
    instances: Mapping[str, Instance]

    def before(self, installed: bool = False) -> tuple[Finding, ...]:
        """What keeps the job from running on this cluster. Raises BiremeError if it does not answer.

        ``installed``: the job is there, so rights to make it, and quotas that it uses itself, say nothing.
        """
        return self._found(self._looks(installed))

    def topics(self, installed: bool) -> tuple[str, ...]:
        """What `before`, and then `after` or `unseen`, look at."""
        return *self._looks(installed), *(self._later if installed else ("images", "network", "credentials"))

    def _looks(self, installed: bool) -> dict[str, Callable[[], Iterable[Finding]]]:
        looks: dict[str, Callable[[], Iterable[Finding]]] = {
            "version": lambda: admission.version(self.api),
            "nodes": self._nodes_fit,
            "storage": self._claims,
            "drivers": self._drivers,
            "kinds": self._kinds,
            "references": lambda: dangling(self.manifests, self._has),
            "policies": self._policies,
            "queues": self._queues,
        }
        if not installed:
            looks |= {
                "rights": lambda: admission.rights(self.api, self.manifests, self.plan.namespace),
                "quotas": lambda: admission.quotas(self.api, self.plan),
                "admission": self._admission,
            }
        return looks

    def shortage(self) -> tuple[str, ...]:
        """Why the job's pods do not all fit on the nodes, however full these are; nothing where unknown."""
        return tuple(
            each.sentence for each in self._allowed("nodes", self._nodes_fit) if each.rule == "nodes"
        )

    def unseen(self) -> Iterator[Finding]:
        """What matters to the job and no API server knows, each with the command that shows it."""
        # Those of images/, which Bireme publishes nowhere.
        ours = (each for each in images_of(self.manifests) if re.match(r"(docker\.io/)?bireme/", each))
        for image in sorted(ours):
            yield Finding(
                "images",
                f"The image {image} is in no registry: the nodes have to have it, or you build and push it",
                "make images REGISTRY=REGISTRY, then --image REGISTRY/NAME:TAG",
                "note",
            )
        if types := [pod.instance_type or "TYPE" for pod in self.plan.pods if pod.efa]:
            yield Finding(
                "network",
                "Whether the nodes' security group lets all traffic to itself through, as EFA needs, "
                "shows only between two nodes",
                f"helm install check charts/torch-elastic --set workers=2,instance.type={min(types)}",
                "note",
            )
        accounts = {spec.get("serviceAccountName") for spec in self._specs if "s3://" in str(spec)}
        for name in sorted(str(each or "default") for each in accounts):
            yield Finding(
                "credentials",
                f"Whether the ServiceAccount {name} has a role for S3 is known to AWS only; the nodes' "
                "role takes its place only where the hop limit of the instance metadata is 2",
                f"aws eks list-pod-identity-associations --cluster-name CLUSTER --service-account {name}",
                "note",
            )

    def after(self) -> tuple[Finding, ...]:
        """Why the pods of the installed job are not running, restart, or use TCP."""
        return self._found(self._later)

    @property
    def _later(self) -> dict[str, Callable[[], Iterable[Finding]]]:
        return {"jobs": self._jobs, "pods": self._pods, "network": self._network}

    def _found(self, looks: Mapping[str, Callable[[], Iterable[Finding]]]) -> tuple[Finding, ...]:
        found = (each for topic, look in looks.items() for each in self._allowed(topic, look))
        return tuple(dict.fromkeys(found))

    def _allowed(self, topic: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
        """What ``look`` finds, or a finding that it was not allowed to look."""
        try:
            yield from look()
        except ApiError as error:
            if error.status not in _FORBIDDEN:
                raise
            path = str(error).partition(" GET ")[2].partition(":")[0].partition("?")[0]
            resource = path.rstrip("/").rpartition("/")[2] or topic
            yield Finding(
                "rights",
                f"You may not read {resource}, so nothing is said about {topic}",
                f"kubectl auth can-i list {resource}",
            )

    @cached_property
    def _specs(self) -> list[Mapping[str, Any]]:
        templates = (each for manifest in self.manifests for each in pod_templates(manifest))
        return [thaw(each["spec"]) for each in templates if each.get("spec")]

    @cached_property
    def _nodes(self) -> Sequence[Mapping[str, Any]]:
        return self.api.items("/api/v1/nodes")

    @cached_property
    def _daemons(self) -> Sequence[Mapping[str, Any]]:
        return self.api.items("/apis/apps/v1/daemonsets")

    @cached_property
    def _types(self) -> set[str]:
        """The instance types that the job's pods are bound to."""
        return {pod.instance_type for pod in self.plan.pods if pod.instance_type}

    def _admission(self) -> Iterator[Finding]:
        own = {item.name for item in self.manifests if item.kind == "ServiceAccount"}
        return admission.pods(self.api, self._specs, own, self.plan.namespace)

    def _nodes_fit(self) -> Iterator[Finding]:
        yield from self._ill()
        usable = [node for node in self._nodes if not node["spec"].get("unschedulable") and not illness(node)]
        # Karpenter makes the nodes that pods wait for, but none that is larger than those of the type.
        is_made = self.api.find("/apis/karpenter.sh/v1/nodepools") is not None
        offered = [node["status"].get("allocatable") or {} for node in usable]
        wanted = {name for pod in self.plan.pods for name in pod.resources if name in PROVIDERS}
        missing = {name for name in wanted if not any(quantity(each.get(name, "0")) for each in offered)}
        for name in () if is_made else sorted(missing):
            yield Finding("nodes", f"No node offers {name}, which the job asks for", PROVIDERS[name])
        rooms: dict[str, list[Mapping[str, str]]] = {}
        for node in usable:
            kind = _labels(node).get(INSTANCE_TYPE_LABEL, "")
            if kind in self._types and kind in self.instances:
                rooms.setdefault(kind, []).append(_room(node, self._daemons))
        bound = [pod for pod in self.plan.pods if pod.instance_type]
        for said in fit(bound, rooms, self.instances):
            if NEVER in said and not any(name in said for name in missing):
                yield Finding("nodes", said, _SMALL)
            elif NEVER not in said and not is_made:
                yield Finding("nodes", said, _make(bound))
        if not is_made:
            yield from self._taints(usable)
            yield from self._without_nodes(usable)

    def _ill(self) -> Iterator[Finding]:
        for node in self._nodes:
            kind, name = _labels(node).get(INSTANCE_TYPE_LABEL), node["metadata"]["name"]
            if (not self._types or kind in self._types) and (why := illness(node)):
                yield Finding(
                    "nodes",
                    f"Node {name} is ill: {why}",
                    "helm upgrade autoscaler charts/autoscaler --reuse-values --set illNodes.enabled=true "
                    "lets workers leave such nodes",
                    "warning",
                )

    def _taints(self, nodes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
        for spec in self._specs:
            kind = str((spec.get("nodeSelector") or {}).get(INSTANCE_TYPE_LABEL, ""))
            for node in (each for each in nodes if _labels(each).get(INSTANCE_TYPE_LABEL) == kind):
                for taint in node["spec"].get("taints") or ():
                    if taint["effect"] != "PreferNoSchedule" and not tolerated(taint, spec):
                        name = node["metadata"]["name"]
                        yield Finding(
                            "taints",
                            f"Node {name} has the taint {taint['key']}:{taint['effect']}, "
                            "which the job does not tolerate",
                            f"kubectl describe node {name}, then add the taint to the values' tolerations",
                        )

    def _without_nodes(self, nodes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
        """What no node is labelled for. Of a DaemonSet nothing else tells that it runs no pod."""
        for item in self.manifests:
            for spec in (template.get("spec") or {} for template in pod_templates(item)):
                labels = other_labels(spec)
                is_told = not labels and item.kind != "DaemonSet"
                if is_told or any(admits(spec, node["metadata"]["name"], _labels(node)) for node in nodes):
                    continue
                wanted = f"labelled {labels}" if labels else "of other instance types"
                said = f"No node takes pods of {item.identity}, which want nodes {wanted}"
                yield Finding("nodes", said, "kubectl get nodes --show-labels")

    def _claims(self) -> Iterator[Finding]:
        own = {item.name for item in self.manifests if item.kind == "PersistentVolumeClaim"}
        namespace = self.plan.namespace
        volumes = [each for spec in self._specs for each in spec.get("volumes") or ()]
        claims = {str(claim["claimName"]) for each in volumes if (claim := each.get("persistentVolumeClaim"))}
        for name in sorted(claims - own):
            found = self.api.find(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
            show = f"kubectl describe pvc {name} --namespace {namespace}"
            if found is None:
                yield Finding(
                    "storage",
                    f"There is no claim {name} in namespace {namespace}, which the job mounts",
                    "helm install NAME charts/efs, charts/fsx or charts/dataset",
                )
            elif found["status"].get("phase") != "Bound":
                yield Finding("storage", f"The claim {name} is {found['status'].get('phase')}", show)
            else:
                yield from self._bound_claim(found, show)

    def _bound_claim(self, claim: Mapping[str, Any], show: str) -> Iterator[Finding]:
        name = claim["metadata"]["name"]
        users = sum(pod.accelerators > 0 for pod in self.plan.pods)
        modes = set(claim["spec"].get("accessModes") or ())
        if users > 1 and not modes & {"ReadWriteMany", "ReadOnlyMany"}:
            yield Finding(
                "storage", f"The claim {name} is {', '.join(modes)}, and {users} workers mount it", show
            )
        volume = self.api.find(f"/api/v1/persistentvolumes/{claim['spec'].get('volumeName')}")
        zones = _zones(volume or {})
        if not zones:
            return
        theirs = {
            str(each.get(ZONE_LABEL))
            for each in map(_labels, self._nodes)
            if each.get(INSTANCE_TYPE_LABEL) in self._types or not self._types
        }
        if theirs and not theirs & zones:
            yield Finding(
                "zones",
                f"The claim {name} is in {', '.join(sorted(zones))}, and the job's nodes are in "
                f"{', '.join(sorted(theirs))}",
                f"bireme eksctl --zones {min(zones)},… makes nodes beside it",
            )

    def _drivers(self) -> Iterator[Finding]:
        for driver in sorted({each.driver for each in self.plan.storage} & set(_ADDONS)):
            if self.api.find(f"/apis/storage.k8s.io/v1/csidrivers/{driver}") is None:
                yield Finding(
                    "drivers",
                    f"The cluster has no CSI driver {driver}, which the job's volumes need",
                    f"aws eks create-addon --cluster-name CLUSTER --addon-name {_ADDONS[driver]}",
                )

    def _kinds(self) -> Iterator[Finding]:
        for version in sorted({item.api_version for item in self.manifests if "." in item.api_version}):
            served = self.api.find(f"/apis/{version}")
            known = {each["kind"] for each in (served or {}).get("resources", ())}
            wanted = {item.kind: item for item in self.manifests if item.api_version == version}
            for name in sorted(wanted.keys() - known):
                kind = kind_of(wanted[name])
                helps = kind.installation if kind else WorkloadKind.installation
                yield Finding("kinds", f"The cluster does not know the kind {name} of {version}", helps)

    def _has(self, kind: str, name: str) -> bool:
        """Whether the namespace has such an object. Of claims, and of kinds unknown here, nothing is said."""
        folder = f"/api/v1/namespaces/{self.plan.namespace}"
        if kind == "Pod":
            return bool(self.api.items(f"{folder}/pods", labelSelector=name))
        if kind in ("ConfigMap", "Secret", "Service"):
            return self.api.find(f"{folder}/{kind.lower()}s/{name}") is not None
        known = KINDS.get(kind)
        return not known or self.api.find(f"{known.path(self.plan.namespace)}/{name}") is not None

    def _policies(self) -> Iterator[Finding]:
        """NetworkPolicies that nothing holds pods to: the API server takes them all the same."""
        if not any(item.kind == "NetworkPolicy" for item in self.manifests):
            return
        system = [each for each in self._daemons if each["metadata"]["namespace"] == "kube-system"]
        # Where no agent of the cluster runs on nodes, as on fake ones, nothing is known of the network.
        if system and not re.search(_ENFORCER, str([each["spec"] for each in self._daemons])):
            yield Finding(
                "policies",
                "Nothing that is known here holds pods to NetworkPolicies, so any pod reaches the job's",
                "aws eks update-addon --cluster-name CLUSTER --addon-name vpc-cni "
                """--configuration-values '{"enableNetworkPolicy": "true"}'""",
                "warning",
            )

    def _queues(self) -> Iterator[Finding]:
        namespace = self.plan.namespace
        for queue in sorted({each.queue for each in self.plan.queued}):
            root = "/apis/kueue.x-k8s.io"
            if self.api.find(root) is None:
                said = f"The cluster has no Kueue, so the queue {queue} does not hold the job"
                yield Finding("queues", said, "helm upgrade with --set queue.name=, or install Kueue")
            elif self.api.find(f"{root}/v1beta2/namespaces/{namespace}/localqueues/{queue}") is None:
                said = f"There is no queue {queue} in namespace {namespace}"
                yield Finding("queues", said, f"kubectl get localqueues --namespace {namespace}")

    def _own(self, kind: str, path: str) -> list[Mapping[str, Any]]:
        """The live objects of a kind that are the release's, or that it has made."""
        owners = Owners(self.api, self.plan)
        return [each for each in self.api.items(path) if owners.maker(kind, each)]

    def _jobs(self) -> Iterator[Finding]:
        namespace = self.plan.namespace
        positions = queue_positions(self.api, namespace, self.plan.queued)
        for position in (each for each in positions if each.state == "waiting"):
            yield Finding("queues", sentence(position), f"kubectl get workloads --namespace {namespace}")
        waiting = {each.name for each in positions}
        for job in self._own("Job", f"/apis/batch/v1/namespaces/{namespace}/jobs"):
            name, status = job["metadata"]["name"], job.get("status") or {}
            show = f"kubectl describe job {name} --namespace {namespace}"
            if job["spec"].get("suspend") and name not in waiting:
                said = f"The Job {name} is suspended by its values"
                yield Finding("jobs", said, f"bireme resume {self.plan.release} --namespace {namespace}")
            for condition in status.get("conditions") or ():
                if condition["type"] == "Failed" and condition["status"] == "True":
                    why = _ENDS.get(condition.get("reason", ""), "has failed")
                    message = f" ({condition['message']})" if condition.get("message") else ""
                    yield Finding(
                        "jobs", f"The Job {name} {why}{message}", f"kubectl logs job/{name} -n {namespace}"
                    )
            if not job["spec"].get("suspend") and not status.get("active"):
                yield from self._refused_pods(name, show)

    def _refused_pods(self, job: str, show: str) -> Iterator[Finding]:
        selector = f"involvedObject.name={job},reason=FailedCreate"
        events = self.api.items(f"/api/v1/namespaces/{self.plan.namespace}/events", fieldSelector=selector)
        if events:
            yield Finding("jobs", f"The Job {job} cannot make pods: {events[-1].get('message', '')}", show)

    def _pods(self) -> Iterator[Finding]:
        """What is true of several pods is said of the first, with their number."""
        alike: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
        for name, finding in self._each_pod():
            alike.setdefault((finding.rule, finding.sentence.replace(name, "")), []).append((name, finding))
        for (_, first), *others in alike.values():
            more = f" (also {len(others)} more pods, up to {others[-1][0]})" if others else ""
            yield replace(first, sentence=f"{first.sentence}{more}")

    def _each_pod(self) -> Iterator[tuple[str, Finding]]:
        namespace = self.plan.namespace
        for pod in self._own("Pod", f"/api/v1/namespaces/{namespace}/pods"):
            name, status = pod["metadata"]["name"], pod.get("status") or {}
            show = f"kubectl describe pod {name} --namespace {namespace}"
            for condition in status.get("conditions") or ():
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    why = shorten(condition.get("message") or condition.get("reason", ""))
                    yield name, Finding("pending", f"The pod {name} has no node: {why}", show)
            for each in container_statuses(status):
                yield from ((name, found) for found in _container(name, each, namespace, show))

    def _network(self) -> Iterator[Finding]:
        workers = sum(each.accelerators > 0 for each in self.plan.pods)
        for role, pod in {each.role: each for each in self.plan.pods}.items():
            instance = self.instances.get(pod.instance_type or "")
            if instance and instance.efa and pod.accelerators and not pod.efa and workers > 1:
                yield Finding(
                    "network",
                    f"The {role} pods ask for none of the {instance.efa} EFA interfaces of a "
                    f"{instance.type}, so NCCL uses TCP",
                    "helm upgrade with --set efa=all",
                )


def release(revision: Revision, charts: Path) -> Iterator[Finding]:
    """What is wrong with an installed release itself: how Helm left it, and a chart of another version.

    ``charts``: the folder of the collection; a chart that is not in it is of no concern.
    """
    name, namespace = revision.release, revision.namespace
    if revision.status != "deployed":
        yield Finding(
            "release",
            f"Helm left the release {name} as {revision.status}",
            f"helm history {name} --namespace {namespace}, then helm rollback {name} --namespace {namespace}",
        )
    here, chart = revision.version_here(charts), revision.chart_name
    if here and here != revision.chart_version:
        yield Finding(
            "release",
            f"The release {name} was installed by {chart} {revision.chart_version}, "
            f"and the chart here is {here}",
            f"bireme plan {chart} {name} --against --reuse-values -n {namespace}, then bireme install",
        )


def _container(pod: str, status: Mapping[str, Any], namespace: str, show: str) -> Iterator[Finding]:
    name = status["name"]
    waiting = (status.get("state") or {}).get("waiting") or {}
    last = (status.get("lastState") or {}).get("terminated") or {}
    ended = (status.get("state") or {}).get("terminated") or last
    logs = f"kubectl logs {pod} --container {name} --previous --namespace {namespace}"
    if ended.get("reason") == "OOMKilled":
        yield Finding(
            "memory", f"The container {name} of {pod} was killed for lack of memory: raise its limit", show
        )
    elif waiting.get("reason") in _FAULTS:
        why, message = _FAULTS[waiting["reason"]], waiting.get("message", "")
        command = logs if waiting["reason"] == "CrashLoopBackOff" else show
        yield Finding("pods", f"The container {name} of {pod} waits, because {why}: {message}", command)
    elif int(status.get("restartCount") or 0) >= _RESTARTS:
        code = f", last with code {last['exitCode']}" if "exitCode" in last else ""
        yield Finding(
            "pods", f"The container {name} of {pod} has restarted {status['restartCount']} times{code}", logs
        )


def _labels(node: Mapping[str, Any]) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _zones(volume: Mapping[str, Any]) -> set[str]:
    """The zones that a volume can be mounted in; none if it does not say."""
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required") or {}
    return {
        str(value)
        for term in required.get("nodeSelectorTerms") or ()
        for each in term.get("matchExpressions") or ()
        if each["key"] in (ZONE_LABEL, "topology.fsx.csi.aws.com/zone")
        for value in each.get("values") or ()
    }


def _room(node: Mapping[str, Any], daemons: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """What the node offers, less what DaemonSets take of it."""
    room = Room(node["status"].get("allocatable") or {})
    for spec in (each["spec"]["template"]["spec"] for each in daemons):
        if takes(node, spec):
            room.take(demand_of(pod_requests(spec)))
    return {name: format_quantity(name, amount) for name, amount in room.free.items()}


def _make(bound: Sequence[PodPlan]) -> str:
    kinds = [str(pod.instance_type) for pod in bound]
    kind = max(kinds, key=kinds.count)
    nodes = f"--nodes {kind}={kinds.count(kind)}"
    return f"bireme eksctl {nodes}, or bireme karpenter {nodes}"
