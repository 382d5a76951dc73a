"""Jobs that follow the capacity: they grow while accelerators are free, and give way to what goes first."""

from bireme.autoscale.cluster import RunningJob, World, plan, running
from bireme.autoscale.comparison import Comparison, compare, rows, svg
from bireme.autoscale.controller import Controller, Options
from bireme.autoscale.decisions import ElasticJob, Pool, Resize, decide
from bireme.autoscale.health import serve_health
from bireme.autoscale.lease import Lease
from bireme.autoscale.policy import Policy, Schedule
from bireme.autoscale.simulation import Outcome, Settings, simulate
from bireme.autoscale.sources import WORKER_SECONDS, query, quotas, saving, throughput, unused
from bireme.autoscale.trace import PUBLISHED, TracedJob, read, sample

__all__ = [
    "PUBLISHED",
    "WORKER_SECONDS",
    "Comparison",
    "Controller",
    "ElasticJob",
    "Lease",
    "Options",
    "Outcome",
    "Policy",
    "Pool",
    "Resize",
    "RunningJob",
    "Schedule",
    "Settings",
    "TracedJob",
    "World",
    "compare",
    "decide",
    "plan",
    "query",
    "quotas",
    "read",
    "rows",
    "running",
    "sample",
    "saving",
    "serve_health",
    "simulate",
    "svg",
    "throughput",
    "unused",
]
