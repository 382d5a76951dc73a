"""Pieces of SVG pictures that are readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 960
MARGIN = 24
PLOT_LEFT, PLOT_RIGHT, PLOT_HEIGHT = 170, WIDTH - 2 * MARGIN - 8, 90
"""Where the curves of a plot are, in its block."""
# Dark enough for white digits on light and dark pages.
FILLS = ("#2f6db5", "#b3541e", "#3d7f45", "#8250a8", "#9a6b00", "#b0396b")
_STYLE = """
    text { font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f }
    .page { fill: #ffffff } .node { fill: #f6f8fa; stroke: #8c959f } .free { fill: none; stroke: #8c959f }
    .title { font-size: 16px; font-weight: 600 } .head { font-weight: 600 } .soft { fill: #57606a }
    .rank { font-size: 10px; fill: #ffffff; text-anchor: middle } .end { text-anchor: end }
    .middle { text-anchor: middle } .grid { stroke: #d0d7de } .lost { stroke: #cf222e }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .page { fill: #0d1117 } .node { fill: #161b22; stroke: #6e7681 }
      .free { stroke: #6e7681 } .soft { fill: #9da7b1 } .rank { fill: #ffffff }
      .grid { stroke: #30363d } .lost { stroke: #ff7b72 }
    }
"""


@dataclass(frozen=True)
class Block:
    """A piece of a picture: its lines of SVG, with y from its own top, and its height in pixels."""

    lines: tuple[str, ...]
    height: int


def document(title: str, blocks: Iterable[Block]) -> str:
    """An SVG document with the blocks below each other."""
    body: list[str] = []
    top = MARGIN
    for block in blocks:
        body += [
            f'  <g transform="translate({MARGIN} {top})">',
            *(f"    {line}" for line in block.lines),
            "  </g>",
        ]
        top += block.height
    height = top + MARGIN // 2
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">'
    )
    page = f'  <rect class="page" width="{WIDTH}" height="{height}" rx="8"/>'
    name = f"  <title>{escape(title)}</title>"
    return "\n".join([head, name, f"  <style>{_STYLE}  </style>", page, *body, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, style: str = "") -> str:
    """One line of text."""
    css = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}"{css}>{escape(words)}</text>'


def line(words: str, style: str = "soft") -> Block:
    """A block of one line of text."""
    return Block((text(0, 14, words, style),), 26)


def heading(words: str) -> Block:
    """A block of one line that names what follows."""
    return Block((text(0, 20, words, "head"),), 30)


def short(words: str, most: int = 30) -> str:
    """The words, cut to so many characters."""
    return words if len(words) <= most else f"{words[: most - 1]}…"


def frame(most: float, form: str) -> list[str]:
    """The lines of a plot at 0 and at ``most``, with both numbers."""
    lines = [
        f'<line class="grid" x1="{PLOT_LEFT}" x2="{PLOT_RIGHT}" y1="{y}" y2="{y}"/>' for y in (0, PLOT_HEIGHT)
    ]
    return [
        *lines,
        text(PLOT_LEFT - 8, 10, format(most, form), "end soft"),
        text(PLOT_LEFT - 8, PLOT_HEIGHT, "0", "end soft"),
    ]


def height(value: float, most: float) -> float:
    """Where a value is in a plot up to ``most``, in pixels from its top."""
    return round(PLOT_HEIGHT * (1 - min(1.0, max(0.0, value / most))), 1)


def curve(points: Sequence[tuple[float, float]], colour: str) -> list[str]:
    """A curve through points in pixels; nothing without points."""
    if len(points) == 1:
        return [f'<circle cx="{points[0][0]:g}" cy="{points[0][1]:g}" r="2" fill="{colour}"/>']
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'] if path else []
