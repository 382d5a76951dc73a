"""Helm: values as it reads and merges them, and charts as it renders them."""

from bireme.helm.charts import Charts
from bireme.helm.output import parse, sentences
from bireme.helm.render import Arm, Covered, Render, Renderer, RenderError, RenderRequest, tree_digest
from bireme.helm.values import ChartValues, SetFlags, load
from bireme.helm.yaml import as_json

__all__ = [
    "Arm",
    "ChartValues",
    "Charts",
    "Covered",
    "Render",
    "RenderError",
    "RenderRequest",
    "Renderer",
    "SetFlags",
    "as_json",
    "load",
    "parse",
    "sentences",
    "tree_digest",
]
