"""What `bireme lint` reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """One thing to change in a chart: ``sentence`` says what is wrong and, where it is not plain, what to do.

    ``check`` is the name of the check and ``where`` a file of the chart. ``values`` is the values file that
    shows it, ``defaults`` for a render without one, "" when nothing was rendered.
    """

    chart: str
    check: str
    where: str
    sentence: str
    values: str = ""

    def __str__(self) -> str:
        shown_by = f" (with {self.values})" if self.values not in ("", self.where) else ""
        return f"{self.chart}/{self.where}: {self.sentence}{shown_by}"

    def to_json(self) -> dict[str, str]:
        """Plain JSON, for ``-o json``."""
        return asdict(self)
