"""Debian's torch has no libuv, and parts of it ask for libuv whatever USE_LIBUV says: this turns them down.

Python imports it at its start, from PYTHONPATH. It is all that a stock torchrun gets here.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class WithoutLibuv:
    """Finds torch.distributed as usual, and replaces its store once it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Answer for torch.distributed only, once."""
        if name != "torch.distributed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            # torch.distributed.rendezvous is a function: its module of that name is only here.
            replace_store(module, sys.modules["torch.distributed.rendezvous"])

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def replace_store(*modules: Any) -> None:
    """Have these modules make their TCPStores without libuv."""
    stock = modules[0].TCPStore

    class TCPStore(stock):  # type: ignore[valid-type,misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "use_libuv": False})

    for module in modules:
        module.TCPStore = TCPStore


sys.meta_path.insert(0, WithoutLibuv())
