"""The layout of the dispatcher's keys in etcd (docs/dispatcher.md).

Keys below the prefix. Only the leader writes them, except `trainers/` and `blocks/`:

    leader                            under the leader's lease: its address
    datasets/<name>                   registers the dataset
    trainers/<name>/<trainer>         under the trainer's lease
    d/<name>/meta                     the definition: number of shards, number of passes, limits
    d/<name>/blocks/<digest>/<k>      names of a block of shards; never changed
    d/<name>/pass                     number of the current pass, and whether all passes are over
    d/<name>/held/<shard>             a trainer has it; the key's revision is the token for acknowledging it
    d/<name>/done/<pass>/<shard>      acknowledged
    d/<name>/failed/<pass>/<shard>    given up in this pass
    d/<name>/tries/<pass>/<shard>     failed, to be tried again
    d/<name>/once/<task>              a task that one trainer does while the others wait
    d/<name>/passes/<pass>            summary of a pass that has ended
    d/<name>/finished                 all passes are over and the last trainer has left; "goes" if deleted

Of a finished dataset, the marks, the names and the tries are deleted.

A shard that is neither held nor done nor failed is still to do. So a new pass writes no keys of shards.
"""

from __future__ import annotations

DEFAULT_PREFIX = "/bireme/dispatcher/"


def leader_key(prefix: str) -> str:
    """The key of the leader."""
    return f"{prefix}leader"


def datasets_of(prefix: str) -> str:
    """The prefix of the keys that register datasets."""
    return f"{prefix}datasets/"


class Keys:
    """The keys of one dataset. Without a shard or a name, a method returns the prefix of its keys."""

    def __init__(self, prefix: str, dataset: str) -> None:
        self.dataset = dataset
        self.registered = f"{datasets_of(prefix)}{dataset}"
        self.root = f"{prefix}d/{dataset}/"
        self.meta, self.current_pass = f"{self.root}meta", f"{self.root}pass"
        self.finished = f"{self.root}finished"
        self.all_done, self.all_blocks = f"{self.root}done/", f"{self.root}blocks/"
        self._trainers = f"{trainers_of(prefix)}{dataset}/"

    def blocks(self, digest: str) -> str:
        return f"{self.root}blocks/{digest}/"

    def block(self, digest: str, number: int) -> str:
        return f"{self.blocks(digest)}{number:07d}"

    def held(self, shard: int | None = None) -> str:
        return f"{self.root}held/" + _index(shard)

    def done(self, number: int, shard: int | None = None) -> str:
        return f"{self.root}done/{number:07d}/" + _index(shard)

    def failed(self, number: int, shard: int | None = None) -> str:
        return f"{self.root}failed/{number:07d}/" + _index(shard)

    def tries(self, number: int, shard: int | None = None) -> str:
        return f"{self.root}tries/{number:07d}/" + _index(shard)

    def ended(self, number: int) -> str:
        return f"{self.root}passes/{number:07d}"

    def once(self, what: str = "") -> str:
        return f"{self.root}once/{what}"

    def trainer(self, trainer: str = "") -> str:
        return f"{self._trainers}{trainer}"


def _index(shard: int | None) -> str:
    return "" if shard is None else f"{shard:09d}"


def trainers_of(prefix: str) -> str:
    """The prefix of the keys of all trainers."""
    return f"{prefix}trainers/"


def after(prefix: str) -> str:
    """The first key after all keys with this prefix, which must end in "/"."""
    return prefix[:-1] + "0"


def last_part(key: str) -> str:
    """The part of a key after the last "/"."""
    return key.rpartition("/")[2]
