"""Schemas of the charts' values: bundled from their sources, and checked with sentences."""
