"""Bireme: plan, install and check distributed training jobs rendered from Helm charts."""

__version__ = "0.3.0"
