"""What the dispatcher's client and its service agree on."""

BLOCK = 1000
"""Names of a dataset's shards travel, and are kept, in blocks of at most so many."""
