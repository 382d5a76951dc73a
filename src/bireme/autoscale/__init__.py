"""Jobs that follow the capacity: they grow while accelerators are free, and give way to what goes first."""

from bireme.autoscale.cluster import RunningJob, World, plan, running
from bireme.autoscale.controller import Controller, Options
from bireme.autoscale.decisions import ElasticJob, Pool, Resize, decide
from bireme.autoscale.health import serve_health
from bireme.autoscale.lease import Lease
from bireme.autoscale.policy import Policy, Schedule
from bireme.autoscale.sources import WORKER_SECONDS, query, quotas, saving, unused

__all__ = [
    "WORKER_SECONDS",
    "Controller",
    "ElasticJob",
    "Lease",
    "Options",
    "Policy",
    "Pool",
    "Resize",
    "RunningJob",
    "Schedule",
    "World",
    "decide",
    "plan",
    "query",
    "quotas",
    "running",
    "saving",
    "serve_health",
    "unused",
]
