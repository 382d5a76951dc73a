"""What the objects of one render have that an install, or the next upgrade, trips over."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bireme.check.duplicates import duplicates
from bireme.core.errors import BiremeError
from bireme.core.findings import Finding
from bireme.core.labels import HOOK_ANNOTATION
from bireme.core.manifests import Manifest
from bireme.helm.yaml import documents, doubled_keys
from bireme.live.admission import too_small
from bireme.plan.references import dangling
from bireme.plan.topology import expand
from bireme.plan.workloads import kind_of

# What of a cluster a chart may name without bringing it, unless it has the name of the release.
_ELSEWHERE = ("ClusterRole", "ConfigMap", "PersistentVolumeClaim", "Role", "Secret", "ServiceAccount")
_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_CRD = "CustomResourceDefinition"
# Groups whose pods kubeconform knows.
_WITH_SCHEMA = ("", "apps", "batch")

# Helm's moments and policies of hooks: https://helm.sh/docs/topics/charts_hooks/
HOOKS = frozenset(
    {"test", "test-success", "test-failure"}
    | {f"{when}-{what}" for when in ("pre", "post") for what in ("install", "delete", "upgrade", "rollback")}
)
_POLICY = "helm.sh/hook-delete-policy"
_WEIGHT = "helm.sh/hook-weight"
_POLICIES = ("before-hook-creation", "hook-succeeded", "hook-failed")
# What keeps data, or has it deleted along.
_WITH_DATA = ("PersistentVolumeClaim", "PersistentVolume", "Namespace", _CRD)


def object_findings(
    manifests: Sequence[Manifest], release: str = "release", namespace: str = "default"
) -> list[Finding]:
    """What is wrong with the objects of one render; the files are templates of the chart.

    Claims, Secrets and ConfigMaps that have not the name of the ``release`` are the cluster's.
    """
    found = [*dangling(manifests, lambda kind, name: kind in _ELSEWHERE and not name.startswith(release))]
    spaces = {each.name for each in manifests if each.kind == "Namespace"} | {namespace, *_NAMESPACES}
    own_kinds = {(spec["group"], spec["names"]["kind"]) for spec in _definitions(manifests)}
    count = Counter(map(_key, manifests))
    for item in dict(zip(map(_key, manifests), manifests, strict=True)).values():
        own = [*duplicates(item), *_hook_findings(item)]
        workload = kind_of(item)
        if problem := workload.name_problem(item) if workload else None:
            own.append(Finding("names", problem))
        elif workload and item.group not in _WITH_SCHEMA:
            try:
                expand(release, namespace, [item], {})
            except BiremeError as error:
                own.append(Finding("pods", str(error).removeprefix(f"{item.identity}: ")))
        if count[_key(item)] > 1:
            own.append(Finding("duplicates", "two objects have this name", "rename one"))
        if item.namespace and item.namespace not in spaces:
            said = f"the chart has no namespace {item.namespace}, in which it is"
            advice = "leave metadata.namespace out, or make the namespace first"
            own.append(Finding("references", said, advice, "warning"))
        if item.kind == "ResourceQuota":
            own += too_small([item], expand(release, namespace, manifests, {}))
        if (item.group, item.kind) in own_kinds and not item.is_hook:
            said = "Helm asks for its kind before it installs the definition, a template of this chart"
            own.append(Finding("order", said, f"move the {_CRD} to crds/"))
        found += [replace(each, path=item.identity) for each in own]
    sources = sources_of(manifests)
    return [replace(each, file=sources[each.path]) for each in found]


def _key(item: Manifest) -> tuple[str, str, str | None]:
    return item.api_version, item.identity, item.namespace


def _definitions(manifests: Iterable[Manifest]) -> Iterator[Mapping[str, Any]]:
    return (each["spec"] for each in manifests if each.kind == _CRD)


def sources_of(manifests: Iterable[Manifest]) -> dict[str, str]:
    """The template of each object as a path in the chart; Helm puts the chart's name before it."""
    return {each.identity: each.source.partition("/")[2] or "templates" for each in manifests}


def words(text: str) -> list[str]:
    """What stands between commas, as in the annotations of hooks."""
    return [word for each in text.split(",") if (word := each.strip())]


def moments(item: Manifest) -> list[str]:
    """When Helm runs it as a hook: pre-install, post-upgrade and so on. Empty for other objects."""
    return words(str(item.annotations.get(HOOK_ANNOTATION, "")))


def _hook_findings(item: Manifest) -> Iterator[Finding]:
    if not item.is_hook:
        return
    policies = {*words(str(item.annotations.get(_POLICY, "")))}
    for word in sorted(policies - {*_POLICIES}):
        yield Finding("hooks", f"Helm knows no {_POLICY} {word}", f"use {', '.join(_POLICIES)}")
    if not re.fullmatch(r"[+-]?\d+", str(item.annotations.get(_WEIGHT, "0"))):
        yield Finding("hooks", f"its {_WEIGHT} is no integer, so Helm takes 0", "write it as in '-5'")
    is_again = any("upgrade" in each or "rollback" in each for each in moments(item))
    is_deleted = is_again and (not policies or "before-hook-creation" in policies)
    if item.kind in _WITH_DATA and (is_deleted or "hook-succeeded" in policies):
        when = "each upgrade" if is_again else "Helm"
        advice = "make it an object of the chart, with helm.sh/resource-policy: keep"
        yield Finding("hooks", f"{when} deletes it as a hook, with its data", advice)


def repeated(text: str, manifests: Sequence[Manifest], keeps: bool) -> Iterator[Finding]:
    """What ``text``, a second render, has otherwise than ``manifests``, and keys that a mapping has twice.

    What random values or dates make is for an upgrade to change again, unless the chart ``keeps`` them, by
    asking the cluster. Hooks of installs and tests run once.
    """
    sources, known = sources_of(manifests), {each.identity: each for each in manifests}
    count = Counter(each.identity for each in manifests)
    for node, content in documents(text, "the rendered text"):
        item = Manifest(content if isinstance(content, dict) else {})
        file = sources.get(item.identity, "templates")
        for key in sorted({key for key, *_ in doubled_keys(node)}):
            sentence = f"a mapping has the key {key} twice, and Kubernetes takes the last"
            yield Finding("duplicates", sentence, "keep one", file=file, path=item.identity)
        events = moments(item)
        if keeps or not item or (events and not any("upgrade" in each for each in events)):
            continue
        # Of two with one name nobody knows which is which.
        before = known.get(item.identity) if count[item.identity] < 2 else item
        parts = _differing(before.thaw(), content, ()) if before else ()
        if not before and not item.kind.endswith("List"):
            sentence = "each render gives such an object another name"
            yield Finding(
                "drift", sentence, "name it after the release", "warning", "templates", 0, item.kind
            )
        for part in sorted({".".join(each) for each in parts}):
            sentence = f"each render makes another {part}, so each upgrade changes it"
            advice = "take it from a Secret that exists, or keep it by lookup"
            yield Finding("drift", sentence, advice, "warning", file, path=item.identity)


def _differing(one: Any, other: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in one.keys() | other.keys():
            yield from _differing(one.get(key), other.get(key), (*above, str(key)))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from _differing(mine, its, (*above, str(number)))
    elif one != other:
        yield above
