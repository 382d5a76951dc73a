"""The pinned tools: found, downloaded or built."""

from bireme.tools.toolbox import Toolbox, ToolStatus

__all__ = ["ToolStatus", "Toolbox"]
