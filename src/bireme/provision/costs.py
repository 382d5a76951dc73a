"""What groups of nodes cost an hour, and the quotas that they count against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.helm import values
from bireme.provision.groups import Group

_REMARKS = {
    "on-demand": "",
    "spot": ", on demand; spot is cheaper",
    "reservation": ", also while the reservation is unused",
    "block": ", on demand; a capacity block is paid for in advance, at its own price",
}


@dataclass(frozen=True)
class Prices:
    """List prices in USD per hour by instance type, and when they were read.

    ``quotas`` are on vCPUs, by the letters that a type begins with: their ``name``, and their codes in
    Service Quotas, ``onDemand`` and ``spot``.
    """

    date: str
    region: str
    control_plane: float
    on_demand: Mapping[str, float]
    quotas: Mapping[str, Mapping[str, str]]

    def quota(self, instance_type: str) -> Mapping[str, str]:
        """The quota that a type counts against. Raises BiremeError when none is known."""
        fitting = [prefix for prefix in self.quotas if instance_type.startswith(prefix)]
        if not fitting:
            raise BiremeError(f"values/prices.yaml has no quota for {instance_type}: add its letters")
        return self.quotas[max(fitting, key=len)]


def load_prices(paths: Paths) -> Prices:
    """The prices of values/prices.yaml."""
    facts: Mapping[str, Any] = values.read_file(paths.values / "prices.yaml")
    return Prices(
        date=str(facts["date"]),
        region=facts["region"],
        control_plane=float(facts["controlPlane"]),
        on_demand={name: float(price) for name, price in facts["onDemand"].items()},
        quotas=facts["quotas"],
    )


def estimate(groups: Iterable[Group], prices: Prices, control_plane: bool = True) -> tuple[str, ...]:
    """The cost of ``groups`` and their quotas, in sentences. With ``control_plane`` that of a cluster."""
    groups = list(groups)
    total = prices.control_plane if control_plane else 0.0
    lines = [f"control plane: {_usd(prices.control_plane)}"] if control_plane else []
    vcpus: Counter[tuple[str, str]] = Counter()
    for group in groups:
        price = prices.on_demand.get(group.instance.type)
        what = f"{group.count} × {group.instance.type}"
        if price is None:
            lines.append(f"{what}: no list price, only offers (aws ec2 describe-capacity-block-offerings)")
        else:
            total += group.count * price
            lines.append(f"{what}: {_usd(group.count * price)}{_REMARKS[group.capacity.kind]}")
        if group.capacity.kind != "block":
            quota, spot = prices.quota(group.instance.type), group.capacity.kind == "spot"
            name = f"{'spot' if spot else 'on-demand'} {quota['name']}"
            vcpus[quota["spot" if spot else "onDemand"], name] += group.count * group.instance.vcpu
    head = (
        f"An hour costs {_usd(total)} by the list of {prices.region} on {prices.date}, "
        "without storage, NAT, traffic and tax:"
    )
    needs = [f"quota {code}: {count} vCPUs of {name}" for (code, name), count in vcpus.items()]
    check = "aws service-quotas get-service-quota --service-code ec2 --quota-code CODE"
    return head, *(f"  {each}" for each in [*lines, *needs]), f"To check a quota: {check}"


def _usd(amount: float) -> str:
    return f"{amount:.2f} USD"
