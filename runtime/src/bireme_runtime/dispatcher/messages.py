"""What the dispatcher's client and its service agree on."""

BLOCK = 1000
"""The largest number of shard names in one request and in one key of etcd."""
DEFAULT_PORT = 7190
