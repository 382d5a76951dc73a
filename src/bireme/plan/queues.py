"""What of a release goes through a queue of Kueue, and how much quota it takes there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from bireme.core.labels import POD_GROUP_LABEL, QUEUE_LABEL, QUEUE_PRIORITY_LABEL
from bireme.core.manifests import Manifest
from bireme.core.plain import Plain
from bireme.core.quantities import format_quantity, quantity
from bireme.plan.workloads import pod_templates
from bireme.plan.workloads.model import PodPlan, WorkloadPlan

POD_GROUP = "Pods"
"""Stands for the kind of a group of pods that several objects make."""


@dataclass(frozen=True)
class Queued(Plain):
    """What a queue admits as one: an object such as a Job, or a group of pods of several objects.

    ``resources`` are the sums over its ``pods``, as quantities; ``members`` the objects that make these pods.
    """

    hidden = ("members",)
    optional = ("priority_class",)

    kind: str
    name: str
    queue: str
    priority_class: str
    pods: int
    resources: Mapping[str, str]
    members: tuple[str, ...]


def queued(planned: Iterable[tuple[Manifest, WorkloadPlan]]) -> tuple[Queued, ...]:
    """What the queues admit of these objects, in order; nothing where no object names a queue."""
    found: dict[tuple[str, str], list[tuple[Mapping[str, str], WorkloadPlan]]] = defaultdict(list)
    for manifest, workload in planned:
        labelled = (Manifest(each).labels for each in pod_templates(manifest))
        grouped = [labels for labels in labelled if labels.get(POD_GROUP_LABEL)]
        if manifest.labels.get(QUEUE_LABEL):
            found[workload.kind, workload.name].append((manifest.labels, workload))
        elif grouped:
            found[POD_GROUP, grouped[0][POD_GROUP_LABEL]].append((grouped[0], workload))
    waits = []
    for (kind, name), parts in found.items():
        labels, pods = parts[0][0], [pod for _, workload in parts for pod in workload.pods]
        queue, priority = labels[QUEUE_LABEL], labels.get(QUEUE_PRIORITY_LABEL, "")
        members = tuple(workload.name for _, workload in parts)
        waits.append(Queued(kind, name, queue, priority, len(pods), resource_sums(pods), members))
    return tuple(waits)


def resource_sums(pods: Iterable[PodPlan]) -> dict[str, str]:
    """What ``pods`` ask for together, by the name of the resource."""
    total: dict[str, Fraction] = defaultdict(Fraction)
    for pod in pods:
        for name, amount in pod.resources.items():
            total[name] += quantity(amount)
    return {name: format_quantity(name, amount) for name, amount in sorted(total.items())}
