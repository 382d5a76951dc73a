"""Rendered Kubernetes objects: read-only views, and checks that need nothing but the object."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bireme.errors import BiremeError
from bireme.helm_yaml import parse_yaml
from bireme.kubeschemas import kubernetes_schemas, schema_location
from bireme.labels import HOOK_ANNOTATION
from bireme.tools import Toolbox

_SOURCE = re.compile(r"^# Source: (.+)$", re.MULTILINE)
_DOCUMENT = re.compile(r"^---[ \t]*$", re.MULTILINE)


class Manifest(Mapping[str, Any]):
    """One Kubernetes object, frozen all the way down: mappings are read-only, lists are tuples.

    ``source`` is the template it came from, as in Helm's ``# Source:`` line ("" when unknown).
    """

    __slots__ = ("_content", "source")

    def __init__(self, content: Mapping[str, Any], source: str = "") -> None:
        object.__setattr__(self, "_content", freeze(content))
        object.__setattr__(self, "source", source)

    source: str
    _content: Mapping[str, Any]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Manifest cannot be changed: thaw() gives a copy that can ({name})")

    def __getitem__(self, key: str) -> Any:
        return self._content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self._content == other._content and self.source == other.source

    def __hash__(self) -> int:
        return hash((self.kind, self.namespace, self.name, self.source))

    def __repr__(self) -> str:
        return f"Manifest({self.identity})"

    @property
    def kind(self) -> str:
        """The object's kind, "" when it has none."""
        return str(self._content.get("kind") or "")

    @property
    def api_version(self) -> str:
        """The object's apiVersion, "" when it has none."""
        return str(self._content.get("apiVersion") or "")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The object's metadata, empty when it has none."""
        found = self._content.get("metadata")
        return found if isinstance(found, Mapping) else MappingProxyType({})

    @property
    def name(self) -> str:
        """metadata.name, "" when it has none."""
        return str(self.metadata.get("name") or "")

    @property
    def namespace(self) -> str | None:
        """metadata.namespace, None when the object does not say."""
        found = self.metadata.get("namespace")
        return str(found) if found else None

    @property
    def labels(self) -> Mapping[str, str]:
        """metadata.labels."""
        return self.metadata.get("labels") or MappingProxyType({})

    @property
    def annotations(self) -> Mapping[str, str]:
        """metadata.annotations."""
        return self.metadata.get("annotations") or MappingProxyType({})

    @property
    def is_hook(self) -> bool:
        """Whether Helm runs it at a moment of its own (a test, an install hook) instead of keeping it."""
        return HOOK_ANNOTATION in self.annotations

    @property
    def identity(self) -> str:
        """Kind and name as people write them: ``Job/imagenet-r1``."""
        return f"{self.kind or '(no kind)'}/{self.name or '(no name)'}"

    @property
    def pod_template(self) -> Mapping[str, Any] | None:
        """The pod this object makes: {metadata, spec} of its template, of the job template, or of itself."""
        if self.kind == "Pod":
            return self._content
        spec = self._content.get("spec")
        if self.kind == "CronJob" and isinstance(spec, Mapping):
            spec = (spec.get("jobTemplate") or {}).get("spec")
        template = spec.get("template") if isinstance(spec, Mapping) else None
        return template if isinstance(template, Mapping) and "spec" in template else None

    @property
    def pod_templates(self) -> tuple[Mapping[str, Any], ...]:
        """All the pods this object makes: its `pod_template`, or one for each role of an MPIJob."""
        if self.kind == "MPIJob":
            replicas = (self._content.get("spec") or {}).get("mpiReplicaSpecs") or {}
            return tuple(each["template"] for each in replicas.values())
        return () if self.pod_template is None else (self.pod_template,)

    def thaw(self) -> dict[str, Any]:
        """A deep copy in plain dicts and lists, free to change."""
        thawed: dict[str, Any] = thaw(self._content)
        return thawed


def freeze(value: Any) -> Any:
    """``value`` with every mapping read-only and every list a tuple."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """The reverse of `freeze`: fresh dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    return value


def parse(text: str) -> tuple[Manifest, ...]:
    """The objects of a multi-document YAML text as Helm prints it; empty documents are left out.

    Raises BiremeError when a document is not an object or not YAML.
    """
    return tuple(Manifest(content, source) for source, content in split(text))


def split(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(source, object) for every non-empty document of ``text``. Raises BiremeError as `parse` does."""
    for document in _DOCUMENT.split(text):
        found = _SOURCE.search(document)
        source = found.group(1).strip() if found else ""
        content = parse_yaml(document, source or "the rendered text")
        if content:
            yield source, content


# --- list-map keys ---

# The keys by which the API server tells the items of a list apart, from the Kubernetes OpenAPI
# (x-kubernetes-list-map-keys; the patch merge key where that is all there is).
_POD_LISTS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "schedulingGates": ("name",),
    "resourceClaims": ("name",),
}
_CONTAINER_LISTS: Mapping[str, tuple[str, ...]] = {
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
}
_DEFAULTS = {"protocol": "TCP"}


def duplicates(manifest: Manifest) -> list[str]:
    """Items of one list that server-side apply cannot tell apart, as sentences; empty when all is well."""
    found: list[str] = []
    for template in manifest.pod_templates:
        pod = template["spec"]
        found += _repeated(manifest, "pod", pod, _POD_LISTS)
        for kind in ("initContainers", "containers"):
            for container in pod.get(kind) or ():
                found += _repeated(
                    manifest, f"container {container.get('name')}", container, _CONTAINER_LISTS
                )
    spec = manifest.get("spec")
    if manifest.kind == "Service" and isinstance(spec, Mapping):
        found += _repeated(manifest, "service", spec, {"ports": ("port", "protocol")})
        found += _same_names(manifest, spec.get("ports") or ())
    if manifest.kind == "StatefulSet" and isinstance(spec, Mapping):
        claims = [{"name": claim["metadata"]["name"]} for claim in spec.get("volumeClaimTemplates") or ()]
        found += _repeated(
            manifest, "spec", {"volumeClaimTemplates": claims}, {"volumeClaimTemplates": ("name",)}
        )
    return found


def _repeated(
    manifest: Manifest, where: str, holder: Mapping[str, Any], lists: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    for name, keys in lists.items():
        seen: set[tuple[Any, ...]] = set()
        for item in holder.get(name) or ():
            identity = tuple(item.get(key, _DEFAULTS.get(key)) for key in keys)
            if identity in seen:
                said = ", ".join(f"{key} {value}" for key, value in zip(keys, identity, strict=True))
                yield f"{manifest.identity}: two entries in {name} of {where} have {said}"
            seen.add(identity)


def _same_names(manifest: Manifest, ports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = [port.get("name") for port in ports]
    for name in sorted({str(name) for name in names if name and names.count(name) > 1}):
        yield f"{manifest.identity}: two ports are named {name}"


# --- names ---

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_RBAC_NAME = re.compile(r"[^/%]+")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LONG_NAMES = {
    "ConfigMap",
    "CustomResourceDefinition",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Secret",
    "ServiceAccount",
    "StorageClass",
}
_LIMITS = {"StatefulSet": 52, "CronJob": 52}
_WHY = {
    "StatefulSet": "its controller adds an 11-character revision hash",
    "CronJob": "its controller adds 11 characters of time",
}


def name_problems(manifest: Manifest) -> list[str]:
    """What Kubernetes, or the pods made from the object, would not accept in its names and labels."""
    return [f"{manifest.identity}: {why}" for why in [*_object_name(manifest), *_label_values(manifest)]]


def _object_name(manifest: Manifest) -> Iterator[str]:
    name, kind = manifest.name, manifest.kind
    if kind in {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}:
        pattern, limit = _RBAC_NAME, 253
    elif kind == "Service":
        pattern, limit = _SERVICE_NAME, 63
    elif kind in _LONG_NAMES:
        pattern, limit = _SUBDOMAIN, 253
    else:
        pattern, limit = _LABEL, _LIMITS.get(kind, 63)
    if not pattern.fullmatch(name):
        yield f"the name {name!r} may only hold lower-case letters, digits and '-', as a DNS name does"
    if kind == "Job":
        suffix = _job_suffix(manifest)
        if len(name) + suffix > 63:
            yield f"pod names would have {len(name) + suffix} characters with their index, 63 is the most"
    elif kind == "MPIJob":
        suffix = _mpi_suffix(manifest)
        if len(name) + suffix > 63:
            yield f"host names would have {len(name) + suffix} characters with role and index, 63 is the most"
    elif len(name) > limit:
        why = f" ({_WHY[kind]})" if kind in _WHY else ""
        yield f"the name has {len(name)} characters, {limit} is the most{why}"


def _job_suffix(manifest: Manifest) -> int:
    """Characters a Job adds for the host names of its pods: ``-<index>`` when it is Indexed."""
    spec = manifest.get("spec") or {}
    if spec.get("completionMode") != "Indexed":
        return 0
    return 1 + len(str(max(0, int(spec.get("completions") or 1) - 1)))


def _mpi_suffix(manifest: Manifest) -> int:
    """Characters mpi-operator adds for host names: ``-launcher``, or ``-worker-<index>``."""
    replicas = (manifest.get("spec") or {}).get("mpiReplicaSpecs") or {}
    worker = replicas.get("Worker") or {}
    last = max(0, int(worker.get("replicas", 1)) - 1)
    return max(len("-launcher"), len(f"-worker-{last}"))


def _label_values(manifest: Manifest) -> Iterator[str]:
    templates = manifest.pod_templates if manifest.kind != "Pod" else ()
    of_pods = [("pod label", (each.get("metadata") or {}).get("labels") or {}) for each in templates]
    for where, labels in [("label", manifest.labels), *of_pods]:
        for key, value in labels.items():
            if not isinstance(value, str):
                yield f"{where} {key} is {value!r}, it must be a string"
            elif len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
                yield f"{where} {key}={value!r} must be at most 63 letters, digits, '-', '_' or '.'"


# --- Kubernetes' own schemas ---


def kubeconform(
    manifests_by_name: Mapping[str, Sequence[Manifest]], version: str | None, toolbox: Toolbox
) -> list[str]:
    """What Kubernetes ``version`` (None: the default) refuses, in sentences that start with the name given.

    All ``manifests_by_name`` are checked in one kubeconform process against the offline schemas of
    Kubernetes' own kinds; other kinds are passed over. Raises BiremeError when kubeconform itself fails.
    """
    binary = toolbox.path("kubeconform")
    location = schema_location(kubernetes_schemas(toolbox, version))
    with tempfile.TemporaryDirectory(prefix="bireme-kubeconform-") as folder:
        names: dict[str, str] = {}
        for number, (name, manifests) in enumerate(manifests_by_name.items()):
            file = Path(folder) / f"{number}.yaml"
            # JSON is YAML, and a kubeconform file may hold several documents.
            file.write_text("\n---\n".join(json.dumps(manifest.thaw()) for manifest in manifests))
            names[str(file)] = name
        options = ["-output", "json", "-strict", "-ignore-missing-schemas", "-schema-location", location]
        done = subprocess.run([str(binary), *options, folder], capture_output=True, text=True, check=False)
    try:
        resources = json.loads(done.stdout)["resources"] or []
    except (ValueError, KeyError) as error:
        raise BiremeError(f"kubeconform failed: {done.stderr.strip() or done.stdout.strip()}") from error
    found = [
        f"{names[resource['filename']]}: {resource['kind']}/{resource['name']}: {_what(resource)}"
        for resource in resources
        if resource["status"] in {"statusInvalid", "statusError"}
    ]
    return sorted(found)


_LEAF = re.compile(r"- at '(?P<pointer>[^']*)': (?P<why>.*?)(?=\s+- at '|$)")


def _what(resource: Mapping[str, Any]) -> str:
    # validationErrors holds only the outermost level; the message has them all.
    message = " ".join(str(resource.get("msg")).split())
    leaves = [found for found in _LEAF.finditer(message) if found["why"] != "validation failed"]
    said = [
        f"{leaf['pointer'].strip('/').replace('/', '.') or 'the object'}: {leaf['why']}" for leaf in leaves
    ]
    return "; ".join(said) or message
