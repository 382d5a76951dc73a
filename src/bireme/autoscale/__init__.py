"""Jobs that follow the capacity: they grow while accelerators are free, and give way to what goes first."""

from bireme.autoscale.decisions import ElasticJob, Pool, Resize, decide

__all__ = ["ElasticJob", "Pool", "Resize", "decide"]
