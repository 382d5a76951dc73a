"""Kubernetes quantities, and what the scheduler counts for a pod."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from bireme.core.errors import BiremeError

ACCELERATORS = ("nvidia.com/gpu", "aws.amazon.com/neuron", "amd.com/gpu", "habana.ai/gaudi", "google.com/tpu")
EFA = "vpc.amazonaws.com/efa"
HUGE_PAGES = "hugepages-2Mi"

_SUFFIXES: Mapping[str, Fraction] = {
    **{
        suffix: Fraction(1024) ** power
        for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
    },
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    "m": Fraction(1, 10**3),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}

# A longer exponent would be computed forever.
_NUMBER = re.compile(r"[-+]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][-+]?[0-9]{1,2})?")


def quantity(text: object) -> Fraction:
    """A Kubernetes quantity ("1500m", "5120Mi", "1e3", 2) as a number of cores, bytes or devices.

    Raises BiremeError when it is none.
    """
    given = str(text).strip()
    suffix = next((suffix for suffix in _SUFFIXES if given.endswith(suffix)), "")
    number = given.removesuffix(suffix)
    if not _NUMBER.fullmatch(number):
        raise BiremeError(f"{given[:40]!r} is not a Kubernetes quantity: write it like 500m, 16Gi or 8")
    return Fraction(number) * _SUFFIXES.get(suffix, Fraction(1))


def format_quantity(name: str, amount: Fraction) -> str:
    """``amount`` of resource ``name`` in one spelling: cores or millicores, MiB if whole, else plain."""
    if name == "cpu":
        return str(amount) if amount.denominator == 1 else f"{math.ceil(amount * 1000)}m"
    whole = math.ceil(amount)
    is_bytes = name in {"memory", "storage", "ephemeral-storage"} or name.startswith("hugepages-")
    return f"{whole // 2**20}Mi" if is_bytes and whole and whole % 2**20 == 0 else str(whole)


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things, in words: ``1 pod``, ``2 pods``; ``many`` where it is not ``one`` with an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


_MOST_DEVICES = 1024


def accelerators(resources: Mapping[str, str]) -> int:
    """The number of accelerators, of any kind, among ``resources``.

    Raises BiremeError for more than any node will ever have, for which a picture would need all memory.
    """
    found = {name: int(quantity(resources.get(name, "0"))) for name in ACCELERATORS}
    for name, count in found.items():
        if count > _MOST_DEVICES:
            raise BiremeError(
                f"a pod asks for {count:,.0f} of {name}: no node has more than {_MOST_DEVICES:,}"
            )
    return sum(found.values())


def pod_requests(pod_spec: Mapping[str, Any]) -> dict[str, str]:
    """What the scheduler counts for a pod, sorted by name, each in one spelling (see `format_quantity`).

    Containers add up; an init container needs its own requests and those of the sidecars started before it,
    and the larger counts; requests of the pod as a whole win; overhead is added
    (kubernetes/component-helpers ``resource/helpers.go``).
    """
    running: dict[str, Fraction] = defaultdict(Fraction)
    peak: dict[str, Fraction] = defaultdict(Fraction)
    for container in pod_spec.get("initContainers") or ():
        requests = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(running, requests)
            requests = {}
        for name in {*running, *requests}:
            peak[name] = max(peak[name], running[name] + requests.get(name, Fraction()))
    for container in pod_spec.get("containers") or ():
        _add(running, _requests(container))
    total = {name: max(running[name], peak[name]) for name in {*running, *peak}}
    total.update(_requests(pod_spec))
    for name, amount in (pod_spec.get("overhead") or {}).items():
        total[name] = total.get(name, Fraction()) + quantity(amount)
    return {name: format_quantity(name, total[name]) for name in sorted(total)}


def _requests(holder: Mapping[str, Any]) -> dict[str, Fraction]:
    """Requests of a container or pod; a limit stands in for a missing request, as in the API server."""
    resources = holder.get("resources") or {}
    given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in given.items()}


def _add(total: dict[str, Fraction], more: Mapping[str, Fraction]) -> None:
    for name, amount in more.items():
        total[name] += amount
