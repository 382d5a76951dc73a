"""CronJob: a Job at each time of a schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bireme.core.manifests import Manifest, within
from bireme.plan.instances import Instance
from bireme.plan.workloads.model import WorkloadKind, WorkloadPlan, controller_of, role_of, spec_of, too_long

# A CronJob's Jobs carry their time in minutes since 1970: from 2023 on it begins with 28, a date with 20.
_OF_SCHEDULE = re.compile(r"(?P<name>.+)-(2[89]|[3-9]\d)\d{6}")


class CronJob(WorkloadKind):
    """batch/v1 CronJob. Its pods come and go by the clock, so the plan does not count them."""

    name = "CronJob"
    api_version = "batch/v1"
    has_state = False

    def pod_templates(self, manifest: Manifest) -> tuple[Mapping[str, Any], ...]:
        return super().pod_templates(Manifest(within(spec_of(manifest), "jobTemplate")))

    def plan(self, manifest: Manifest, instances: Mapping[str, Instance]) -> WorkloadPlan:
        spec, templates = spec_of(manifest), self.pod_templates(manifest)
        role = role_of(manifest, templates[0] if templates else {})
        note, suspended = f"a {role} Job at each time of {spec.get('schedule')!r}", bool(spec.get("suspend"))
        return WorkloadPlan(manifest.name, self.name, role, 0, 0, 0, (), suspended, note=note)

    def owner(self, pod: Mapping[str, Any]) -> str | None:
        """Its Jobs do not carry the labels of the release: their names lead back to it."""
        controller = controller_of(pod)
        found = _OF_SCHEDULE.fullmatch(controller[1]) if controller and controller[0] == "Job" else None
        return found["name"] if found else None

    def name_problem(self, manifest: Manifest) -> str | None:
        return too_long(manifest, 52, "its controller adds 11 characters of time")


KINDS = (CronJob(),)
