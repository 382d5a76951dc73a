"""What a workload kind is: its plan, its live state, and the protocol through which the harness asks it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

from bireme.core.errors import BiremeError
from bireme.core.labels import COMPONENT_LABEL
from bireme.core.manifests import Manifest, within
from bireme.core.plain import Plain
from bireme.core.quantities import EFA, accelerators, counted, pod_requests, quantity
from bireme.plan.instances import Instance, NodeChoice, choose_nodes

LONGEST_NAME = 63
"""Characters of the longest name of a pod that is a host name too."""


@dataclass(frozen=True)
class PodPlan(Plain):
    """One pod to be. ``hostname`` is None where Kubernetes generates the name (Deployments).

    ``rank`` is the pod's own: with ``processes`` per pod it runs the world ranks from rank·processes on. Pods
    that do not train have none. ``resources`` are the requests the scheduler counts, as quantities.
    """

    hidden = ("processes", "nodes")

    name: str
    role: str
    rank: int | None
    hostname: str | None
    resources: Mapping[str, str]
    node_selector: Mapping[str, str]
    processes: int | None = field(default=None, compare=False)
    nodes: NodeChoice = field(default=NodeChoice(), compare=False)

    @property
    def instance_type(self) -> str | None:
        """The only instance type it can run on, if its node selector or affinity leaves one."""
        types = self.nodes.types or ()
        return types[0] if self.nodes.is_bound and len(types) == 1 else None

    @property
    def accelerators(self) -> int:
        """Accelerators it asks for, of any kind."""
        return accelerators(self.resources)

    @property
    def efa(self) -> int:
        """EFA interfaces it asks for."""
        return int(quantity(self.resources.get(EFA, "0")))


@dataclass(frozen=True)
class WorkloadPlan(Plain):
    """One object that makes pods, such as a Job, and the pods that it makes.

    The pods of a suspended workload are those it has once resumed. Where ``note`` is set, the plan cannot
    count the pods: ``pods`` is empty, and the note says what there will be. ``instance_types`` are the types
    whose nodes get one pod each, known ones and those it names; None for workloads that are not bound to
    nodes. A workload ``is_known`` unless nobody has taught its kind. Its pods train in multiples of ``unit``;
    the last ``spares`` of them wait until others are lost, and have no rank. One that ``is_autoscaled``
    has any number of pods between its bounds.
    """

    hidden = ("suspended", "instance_types", "is_known", "unit", "is_autoscaled")
    optional = ("note", "spares")

    name: str
    kind: str
    role: str
    replicas: int
    min_replicas: int
    max_replicas: int
    pods: tuple[PodPlan, ...]
    suspended: bool = field(default=False, compare=False)
    instance_types: tuple[str, ...] | None = None
    note: str = ""
    is_known: bool = field(default=True, compare=False)
    unit: int = 1
    spares: int = 0
    is_autoscaled: bool = field(default=False, compare=False)

    @property
    def headline(self) -> str:
        """Its object, and how many pods it has, in a line for people."""
        suspended = ", suspended" if self.suspended else ""
        if self.note:
            types = ", ".join(self.instance_types or ()) or "no type of values/instances"
            of = "" if self.instance_types is None else f" of {types}"
            return f"{self.kind}/{self.name}: {self.note}{of}{suspended}"
        low, high = self.min_replicas, self.max_replicas
        spares = f" and {counted(self.spares, 'spare')}" if self.spares else ""
        bounds = f", {low} to {high}" if low != high else ""
        units = f", in units of {self.unit}" if self.unit > 1 else ""
        return f"{self.kind}/{self.name} × {self.replicas - self.spares}{spares}{bounds}{units}{suspended}"

    def sized(self, low: int, high: int) -> WorkloadPlan:
        """The same with at least ``low`` and at most ``high`` pods."""
        count = max(low, min(high, self.replicas))
        more = (f"{self.name}-{index}" for index in range(len(self.pods), count if self.pods else 0))
        added = [
            replace(self.pods[0], name=name, hostname=self.pods[0].hostname and name, rank=None)
            for name in more
        ]
        return replace(self, replicas=count, pods=(*self.pods[:count], *added))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, in the shape of schemas/plan.schema.json."""
        types = {} if self.instance_types is None else {"instanceTypes": list(self.instance_types)}
        unit = {"workersPerUnit": self.unit} if self.unit > 1 else {}
        return super().to_json() | types | unit


@dataclass(frozen=True)
class ObservedWorkload:
    """What a live workload's status says beyond its pods.

    ``state`` is ``Complete`` or ``Failed`` for a job that has ended, ``Updating`` while its controller still
    replaces pods, else "". ``message`` says why it failed, or what it is doing (a predicate). ``replicas``
    are the pods that it is asked for.
    """

    kind: str
    name: str
    state: Literal["", "Complete", "Failed", "Updating"]
    message: str = ""
    replicas: int | None = None


class WorkloadKind(Protocol):
    """All that the harness knows of one Kubernetes kind whose objects make pods.

    Subclasses override what differs from the defaults below: pods from ``spec.template`` that the object
    controls itself, with names that Kubernetes generates, and the conditions of a job.
    """

    name: str
    api_version: str
    has_state: ClassVar[bool] = True
    """Whether `state` reads anything from the live object."""
    complete: ClassVar[str] = ""
    """The type of the condition that is true when a job is done. Empty for what is no job."""
    installation: ClassVar[str] = "kubectl api-resources"
    """The command that gives a cluster the kind, or lists those that it has."""
    suspension: ClassVar[Mapping[str, Any] | None] = None
    """The patch of ``spec`` that stops the pods and keeps the object; None for kinds that are not jobs."""
    mutable: ClassVar[frozenset[str] | None] = None
    """The fields of ``spec`` that an update may change, or None for all but the ``fixed`` ones."""
    fixed: ClassVar[frozenset[str]] = frozenset()
    template_part: ClassVar[str] = "template"
    """What people read about a changed template."""

    @property
    def plural(self) -> str:
        """Its resource name in the API's paths."""
        return f"{self.name.lower()}s"

    @property
    def group(self) -> str:
        """Its API group, "" for Kubernetes' core."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str, api_version: str | None = None) -> str:
        """The API server's path of its objects in ``namespace``, in another version than its own if given."""
        root = "/apis" if self.group else "/api"
        return f"{root}/{api_version or self.api_version}/namespaces/{namespace}/{self.plural}"

    def pod_templates(self, manifest: Manifest) -> tuple[Mapping[str, Any], ...]:
        """The {metadata, spec} of all the pods that the object makes."""
        template = spec_of(manifest).get("template")
        return (template,) if isinstance(template, Mapping) and "spec" in template else ()

    def claims(self, manifest: Manifest) -> Mapping[str, Mapping[str, Any]]:
        """The claims that its controller makes for its pods: name → spec."""
        return {}

    @abstractmethod
    def plan(self, manifest: Manifest, instances: Mapping[str, Instance]) -> WorkloadPlan:
        """The pods that the object becomes. Raises BiremeError for fields that make no sense."""

    def owner(self, pod: Mapping[str, Any]) -> str | None:
        """The name of the object of this kind that made a live pod; None when another kind did."""
        controller = controller_of(pod)
        return controller[1] if controller and controller[0] == self.name else None

    def slot(self, pod: Mapping[str, Any], workload: str) -> str | None:
        """The planned pod of ``workload`` that a live pod stands for; None where any will do."""
        return None

    def state(self, live: Mapping[str, Any]) -> ObservedWorkload:
        """What the status of the live object says: of a job, that it has failed or is done."""
        name, true = live["metadata"]["name"], true_conditions(live)
        # Since Kubernetes 1.31 SuccessCriteriaMet or FailureTarget comes before the end itself.
        if "Failed" in true and self.complete not in true:
            return ObservedWorkload(self.name, name, "Failed", true["Failed"])
        return ObservedWorkload(self.name, name, "Complete" if self.complete in true else "")

    def is_stopped(self, live: Mapping[str, Any]) -> bool:
        """Whether a suspended live object's status counts no pods any more."""
        return True

    def parts(self, manifest: Manifest) -> Mapping[str, Any]:
        """What can differ between two versions of the object, except the number of pods, by its name."""
        names = {"template": self.template_part}
        spec = spec_of(manifest).items()
        return {names.get(key, part_name(key)): value for key, value in spec if key != "replicas"}

    def refused(self, live: Manifest, wanted: Manifest) -> tuple[str, ...]:
        """What differs and cannot change in place."""
        changed = set(differing(spec_of(live), spec_of(wanted)))
        return tuple(sorted(changed & self.fixed if self.mutable is None else changed - self.mutable))

    def name_problem(self, manifest: Manifest) -> str | None:
        """Why the object's name is too long for what is made from it; None when it is not."""
        return too_long(manifest, LONGEST_NAME)


# --- what the kinds share ---


def spec_of(manifest: Manifest) -> Mapping[str, Any]:
    """The object's spec, empty when it has none."""
    return within(manifest, "spec")


_MOST_PODS = 100_000


def count_in(spec: Mapping[str, Any], key: str, default: int = 1) -> int:
    """The number at ``key``. Raises BiremeError for one that is not a number of pods."""
    found = spec.get(key)
    found = default if found is None else found
    if type(found) is not int or not 0 <= found <= _MOST_PODS:
        raise BiremeError(f"{key} is {str(found)[:40]!r}, it must be a whole number from 0 to {_MOST_PODS:,}")
    return found


def controller_of(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Kind and name of the object that controls a live pod."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next(((each["kind"], each["name"]) for each in owners if each.get("controller")), None)


def role_of(manifest: Manifest, template: Mapping[str, Any], default: str | None = None) -> str:
    """The component that the pods' labels name; else ``default``, or the object's component or name."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    otherwise = default or manifest.labels.get(COMPONENT_LABEL) or manifest.name
    return str(labels.get(COMPONENT_LABEL) or otherwise)


def pod_plans(
    names: Sequence[str],
    role: str,
    template: Mapping[str, Any],
    instances: Mapping[str, Instance],
    hostnames: Sequence[str] | None = None,
    ranks: Sequence[int | None] | None = None,
    processes: int | None = None,
) -> tuple[PodPlan, ...]:
    """Pods of one template by their ``names``, with their ``hostnames`` and ``ranks`` where they have some.

    ``processes`` per pod are read from its environment where they are not given.
    """
    spec = template.get("spec") or {}
    requests, selector = pod_requests(spec), dict(spec.get("nodeSelector") or {})
    processes, nodes = processes or processes_of(spec), choose_nodes(spec, instances)
    return tuple(
        PodPlan(
            name=name,
            role=role,
            rank=ranks[index] if ranks else None,
            hostname=hostnames[index] if hostnames else None,
            resources=requests,
            node_selector=selector,
            processes=processes,
            nodes=nodes,
        )
        for index, name in enumerate(names)
    )


def elastic_bounds(pod_spec: Mapping[str, Any]) -> tuple[int, int] | None:
    """torchrun's ``min:max`` (or one number for both) from PET_NNODES, or those of an elastic Horovod job."""
    bounds = _env(pod_spec, "PET_NNODES")
    if bounds is None:
        least = count_of(pod_spec, "BIREME_MPI_LEAST", 0)
        return (least, count_of(pod_spec, "BIREME_MPI_WORKERS", least)) if least else None
    low, _, high = bounds.partition(":")
    try:
        return int(low), int(high or low)
    except ValueError as error:
        raise BiremeError(f"PET_NNODES is {bounds[:40]!r}, it must be MIN:MAX, as in 1:128") from error


def count_of(pod_spec: Mapping[str, Any], variable: str, default: int) -> int:
    """The number in an environment variable. Raises BiremeError when it is none."""
    text = _env(pod_spec, variable) or str(default)
    if not text.isdigit():
        raise BiremeError(f"{variable} is {text[:40]!r}, it must be a whole number")
    return int(text)


def processes_of(pod_spec: Mapping[str, Any], given: str | None = None) -> int | None:
    """Processes per pod: ``given`` or PET_NPROC_PER_NODE; ``gpu`` and ``auto`` mean one per accelerator."""
    given = given or _env(pod_spec, "PET_NPROC_PER_NODE")
    if given is None:
        return None
    if given.isdigit():
        return int(given)
    return accelerators(pod_requests(pod_spec)) or None


def _env(pod_spec: Mapping[str, Any], name: str) -> str | None:
    for container in pod_spec.get("containers") or ():
        for variable in container.get("env") or ():
            if variable.get("name") == name and variable.get("value"):
                return str(variable["value"])
    return None


def part_name(field: str) -> str:
    """How people call a field of a spec."""
    return {"ttlSecondsAfterFinished": "ttl", "activeDeadlineSeconds": "deadline"}.get(field, field)


def differing(one: Any, other: Any) -> list[str]:
    """The keys whose values differ between two mappings, either of which may be missing."""
    one, other = one or {}, other or {}
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def true_conditions(live: Mapping[str, Any]) -> Mapping[str, str]:
    """The conditions of a live object that are true: type → message."""
    conditions = (live.get("status") or {}).get("conditions") or ()
    return {each["type"]: each.get("message", "") for each in conditions if each["status"] == "True"}


def too_long_names(length: int, names: str, what: str) -> str | None:
    """The sentence about ``names`` that have ``length`` characters with ``what``, or None when they fit."""
    if length <= LONGEST_NAME:
        return None
    return f"{names} names would have {length} characters with {what}, {LONGEST_NAME} is the most"


def too_long(manifest: Manifest, limit: int, why: str = "") -> str | None:
    """The sentence about an object whose own name exceeds ``limit`` characters, None for others."""
    length = len(manifest.name)
    if length <= limit:
        return None
    return f"the name has {length} characters, {limit} is the most{f' ({why})' if why else ''}"
