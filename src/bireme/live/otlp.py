"""A run as spans of OpenTelemetry, in OTLP's JSON, which a collector takes at /v1/traces.

Source of the format: opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding.
"""

from __future__ import annotations

import hashlib
from typing import Any

from bireme.live.timeline import BAD_CAUSES, Timeline, World

_INTERNAL, _OK, _ERROR = 1, 1, 2


def traces(run: Timeline) -> dict[str, Any]:
    """One trace: a span for the run, and below it one for each world. Equal runs have equal ids."""
    if not run.worlds:
        return {"resourceSpans": []}
    trace = _id(f"{run.job} {run.worlds[0].begin}", 32)
    spans = [_span(trace, "", run.job, run.worlds[0].begin, run.now, {"lost_steps": run.lost_steps})]
    for world, after in zip(run.worlds, (*run.worlds[1:], None), strict=True):
        span = _span(trace, spans[0]["spanId"], f"round {world.round}", world.begin, world.end, _facts(world))
        span["status"] = {"code": _OK}
        if after and after.cause in BAD_CAUSES:
            span["status"] = {"code": _ERROR, "message": after.why}
        spans.append(span)
    resource = {"attributes": _attributes({"service.name": run.job})}
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": {"name": "bireme"}, "spans": spans}]}
        ]
    }


def _facts(world: World) -> dict[str, str | int | float]:
    return {
        "round": world.round,
        "workers": len(world.seats),
        "why": world.why,
        "steps_per_second": world.steps_per_second,
        "lost_steps": world.lost_steps,
        "lost_seconds": world.lost_seconds,
        "blocked_seconds": world.blocked_seconds,
    }


def _span(
    trace: str, parent: str, name: str, begin: float, end: float, facts: dict[str, Any]
) -> dict[str, Any]:
    return {
        "traceId": trace,
        "spanId": _id(f"{trace} {name}", 16),
        "parentSpanId": parent,
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(round(begin * 1e9)),
        "endTimeUnixNano": str(round(end * 1e9)),
        "attributes": _attributes({f"bireme.{key}": value for key, value in facts.items()}),
    }


def _attributes(facts: dict[str, Any]) -> list[dict[str, Any]]:
    def value(of: str | int | float) -> dict[str, Any]:
        if isinstance(of, int):
            return {"intValue": str(of)}
        return {"doubleValue" if isinstance(of, float) else "stringValue": of}

    return [{"key": key, "value": value(of)} for key, of in facts.items()]


def _id(words: str, digits: int) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:digits]
