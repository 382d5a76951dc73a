"""Jobs that follow the capacity: they grow while accelerators are free, and give way to what goes first."""

from bireme.autoscale.comparison import Comparison, compare, rows, svg
from bireme.autoscale.decisions import ElasticJob, Pool, Resize, decide
from bireme.autoscale.simulation import Outcome, Settings, simulate
from bireme.autoscale.trace import PUBLISHED, TracedJob, read, sample

__all__ = [
    "PUBLISHED",
    "Comparison",
    "ElasticJob",
    "Outcome",
    "Pool",
    "Resize",
    "Settings",
    "TracedJob",
    "compare",
    "decide",
    "read",
    "rows",
    "sample",
    "simulate",
    "svg",
]
