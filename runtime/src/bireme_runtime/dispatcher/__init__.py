"""Shards for trainers (docs/dispatcher.md): this is what a training script imports.

with Dispatcher() as dispatcher:
    for shard in dispatcher.shards():
        train(shard.name)
"""

from bireme_runtime.dispatcher.client import (
    Dispatcher,
    DispatcherError,
    Progress,
    Refused,
    Shard,
    Unavailable,
)

__all__ = ["Dispatcher", "DispatcherError", "Progress", "Refused", "Shard", "Unavailable"]
