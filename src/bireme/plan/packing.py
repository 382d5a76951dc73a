"""What a pod takes of a node, and what a node has left: for the plan, and for the autoscaler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from bireme.core.quantities import quantity

Demand = Mapping[str, Fraction]


def demand_of(requests: Mapping[str, str]) -> dict[str, Fraction]:
    """What a pod with these requests takes of its node; one of the pods that it may have, too."""
    return {**{name: quantity(amount) for name, amount in requests.items()}, "pods": Fraction(1)}


class Room:
    """What a node that offers so much has left."""

    def __init__(self, offered: Mapping[str, str]) -> None:
        self.free = {name: quantity(amount) for name, amount in offered.items()}

    def lacks(self, demand: Demand) -> str | None:
        """The first resource that ``demand`` needs more of than is free, None when it fits."""
        # Like the scheduler, which asks for nothing where a request is 0, however full the node is.
        return next((each for each in demand if demand[each] > max(self.free.get(each, 0), 0)), None)

    def places(self, demand: Demand) -> int:
        """How many pods with this demand fit."""
        return max(
            0, min(math.floor(self.free.get(each, 0) / demand[each]) for each in demand if demand[each])
        )

    def take(self, demand: Demand, pods: int = 1) -> None:
        """So many pods come, whether they fit or not; less than none go."""
        for name, amount in demand.items():
            self.free[name] = self.free.get(name, Fraction()) - amount * pods
