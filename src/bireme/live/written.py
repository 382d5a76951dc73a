"""The jobs of a cluster as documents, as if somebody had written them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from bireme.audit.documents import Document
from bireme.clusters.api import Api
from bireme.core.manifests import without_state
from bireme.helm.yaml import documents
from bireme.plan.workloads.model import controller_of, true_conditions

# Secrets are not listed: a list has their content, and only their names would count.
_LISTS = (
    "batch/v1/jobs",
    "apps/v1/statefulsets",
    "kubeflow.org/v1/pytorchjobs",
    "kubeflow.org/v2beta1/mpijobs",
    "trainer.kubeflow.org/v1alpha1/trainjobs",
    "jobset.x-k8s.io/v1alpha2/jobsets",
    "batch.volcano.sh/v1alpha1/jobs",
    "sagemaker.amazonaws.com/v1/hyperpodpytorchjobs",
    "batch.paddlepaddle.org/v1/paddlejobs",
    "v1/services",
    "v1/configmaps",
    "v1/persistentvolumeclaims",
)
_ENDED = {"Complete", "Completed", "Succeeded", "Failed"}


def written(api: Api, namespace: str) -> Iterator[Document]:
    """The jobs in ``namespace`` that have not ended, and the objects that they name. Raises ApiError."""
    for path in _LISTS:
        version, _, plural = path.rpartition("/")
        root = "apis" if "/" in version else "api"
        listed = api.find(f"/{root}/{version}/namespaces/{namespace}/{plural}") or {}
        for item in listed.get("items") or ():
            if controller_of(item) is None and not _ENDED & true_conditions(item).keys():
                kind = str(listed["kind"]).removesuffix("List")
                yield _document(namespace, {"apiVersion": version, "kind": kind, **item})


def _document(namespace: str, item: Mapping[str, Any]) -> Document:
    """One object, without what the API server adds. Documents of one namespace belong together."""
    own = without_state(item)
    applied = "kubectl.kubernetes.io/last-applied-configuration"
    annotations = own["metadata"].get("annotations", {})
    own["metadata"]["annotations"] = {key: each for key, each in annotations.items() if key != applied}
    name = f"{namespace}/{item['kind']}:{own['metadata']['name']}"
    [(node, content)] = documents(yaml.dump(own, Dumper=yaml.CSafeDumper), name)
    return Document(name, content, node)
