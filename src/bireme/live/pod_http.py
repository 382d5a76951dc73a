"""GET requests to the HTTP servers in the pods of a job."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any

from bireme.clusters.api import Api, ApiError
from bireme.core.manifests import Manifest
from bireme.plan.workloads import pod_templates

_PORT_NAME = "metrics"
_CONTAINER = "trainer"

Ask = Callable[[str, Mapping[str, Any], int, str], Mapping[str, Any] | None]
"""Asks a pod for the JSON object at a path, by namespace, pod, port and path; None without an answer."""


def through_the_api(api: Api, seconds: float, kind: str = "pods") -> Ask:
    """Pods (or ``services``) through the API server. ``seconds`` limit each request."""

    def ask(namespace: str, pod: Mapping[str, Any], port: int, path: str) -> Mapping[str, Any] | None:
        try:
            return api.proxied(namespace, pod["metadata"]["name"], port, path, seconds, kind)
        except ApiError:
            return None

    return ask


def directly(seconds: float) -> Ask:
    """Pods at their own addresses, for a caller inside the cluster."""

    def ask(namespace: str, pod: Mapping[str, Any], port: int, path: str) -> Mapping[str, Any] | None:
        address = pod["status"]["podIP"]
        host = f"[{address}]" if ":" in address else address
        try:
            with urllib.request.urlopen(f"http://{host}:{port}/{path}", timeout=seconds) as answer:
                found = json.load(answer)
        except (OSError, HTTPException, ValueError):
            return None
        return found if isinstance(found, dict) else None

    return ask


def metrics_port(job: Manifest | Mapping[str, Any]) -> int | None:
    """Metrics port of a job's workers, or None if it has none, or for another object."""
    templates = pod_templates(job) if isinstance(job, Manifest) else (job["spec"]["template"],)
    containers = (each for template in templates for each in template["spec"].get("containers") or ())
    ports = (port for each in containers if each["name"] == _CONTAINER for port in each.get("ports") or ())
    return next((int(port["containerPort"]) for port in ports if port.get("name") == _PORT_NAME), None)
