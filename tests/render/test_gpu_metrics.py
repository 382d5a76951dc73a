"""The objects of a gpu-metrics release with either agent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from bireme.helm import Render
from bireme.plan.instances import Instance
from tests.support.rendered import PlanChart, RenderChart, the

CHART = "gpu-metrics"
CLOUDWATCH = ["cloudwatch.region=us-west-2", "global.imageRegistries.bireme=registry.example.com"]
DCGM = ["agent=dcgm"]


def kinds(rendered: Render) -> set[str]:
    return {item.kind for item in rendered.manifests}


def pod(rendered: Render) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = the(rendered, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def configuration(rendered: Render) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(the(rendered, "ConfigMap")["data"]["cwagentconfig.json"])
    return config


def test_it_runs_on_nodes_of_types_with_nvidia_gpus(
    plan: PlanChart, instances: Mapping[str, Instance]
) -> None:
    (agent,) = plan(CHART, sets=DCGM).workloads
    gpus = {each.type for each in instances.values() if each.accelerator.resource == "nvidia.com/gpu"}
    assert set(agent.instance_types or ()) & set(instances) == gpus
    assert {"p3.2xlarge", "g5.xlarge"} < gpus
    assert "trn1.32xlarge" not in gpus


def test_nodes_whose_labels_tell_of_nvidia_gpus_need_no_known_type(render: RenderChart) -> None:
    required = pod(render(CHART, sets=DCGM))["affinity"]["nodeAffinity"]
    terms = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    by_key = {term["matchExpressions"][0]["key"]: term["matchExpressions"][0]["values"] for term in terms}
    del by_key["node.kubernetes.io/instance-type"]
    assert {key: list(values) for key, values in by_key.items()} == {
        "eks.amazonaws.com/instance-gpu-manufacturer": ["nvidia"],
        "karpenter.k8s.aws/instance-gpu-manufacturer": ["nvidia"],
        "nvidia.com/gpu.present": ["true"],
    }


# The agent's JSON schema accepts this document: aws/amazon-cloudwatch-agent, schema.json at ab55b8d. That was
# tried by hand, because the Go proxy has no version of the module.
CONFIGURATION = """
agent: {region: us-west-2}
logs:
  metrics_collected: {kubernetes: {cluster_name: do-eks, metrics_collection_interval: 10}}
  force_flush_interval: 5
metrics:
  namespace: CWAgent
  append_dimensions: {AutoScalingGroupName: "${aws:AutoScalingGroupName}", InstanceId: "${aws:InstanceId}"}
  metrics_collected:
    nvidia_gpu:
      measurement:
        [utilization_gpu, utilization_memory, temperature_gpu, power_draw, memory_total, memory_used]
      metrics_collection_interval: 10
"""


def test_the_configuration_of_the_cloudwatch_agent(render: RenderChart) -> None:
    rendered = render(CHART, files=["charts/gpu-metrics/ci/container-insights-values.yaml"])
    assert configuration(rendered) == yaml.safe_load(CONFIGURATION)
    sets = [*CLOUDWATCH, "cloudwatch.namespace=Mine", "cloudwatch.intervalSeconds=5"]
    metrics = configuration(render(CHART, sets=sets))["metrics"]
    assert metrics["namespace"] == "Mine"
    assert metrics["metrics_collected"]["nvidia_gpu"]["metrics_collection_interval"] == 5


def test_without_container_insights_it_needs_no_folder_of_the_node_and_no_api(render: RenderChart) -> None:
    rendered = render(CHART, sets=CLOUDWATCH)
    assert "logs" not in configuration(rendered)
    assert [volume["name"] for volume in pod(rendered)["volumes"]] == ["all-gpus", "config"]
    assert pod(rendered)["automountServiceAccountToken"] is False
    assert not {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} & kinds(rendered)


def test_container_insights_has_only_read_permissions(render: RenderChart) -> None:
    rendered = render(CHART, files=["charts/gpu-metrics/ci/container-insights-values.yaml"])
    assert "endpointslices" in {
        each for rule in the(rendered, "ClusterRole")["rules"] for each in rule["resources"]
    }
    verbs = {verb for rule in the(rendered, "ClusterRole")["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}
    (subject,) = the(rendered, "ClusterRoleBinding")["subjects"]
    assert subject["name"] == pod(rendered)["serviceAccountName"]
    (agent,) = pod(rendered)["containers"]
    hosts = {volume["name"] for volume in pod(rendered)["volumes"] if "hostPath" in volume}
    assert {mount["name"] for mount in agent["volumeMounts"] if mount.get("readOnly")} >= hosts - {"all-gpus"}


def test_a_change_of_the_configuration_replaces_the_pods(render: RenderChart) -> None:
    annotations = [
        the(render(CHART, sets=[*CLOUDWATCH, f"cloudwatch.intervalSeconds={seconds}"]), "DaemonSet")["spec"][
            "template"
        ]["metadata"]["annotations"]["bireme/config"]
        for seconds in (10, 60)
    ]
    assert annotations[0] != annotations[1]


def test_each_agent_renders_only_its_own_objects(render: RenderChart) -> None:
    cloudwatch, dcgm = (render(CHART, sets=sets) for sets in (CLOUDWATCH, DCGM))
    assert kinds(cloudwatch) == {"ServiceAccount", "ConfigMap", "DaemonSet", "Pod"}
    assert kinds(dcgm) == {"ServiceAccount", "ConfigMap", "DaemonSet", "Service", "Pod"}
    assert the(cloudwatch, "DaemonSet").name != the(dcgm, "DaemonSet").name, "a selector cannot change"


def test_a_service_monitor_on_request_selects_the_service(render: RenderChart) -> None:
    assert "ServiceMonitor" not in kinds(render(CHART, sets=DCGM))
    rendered = render(CHART, sets=[*DCGM, "dcgm.serviceMonitor.enabled=true"])
    wanted = dict(the(rendered, "ServiceMonitor")["spec"]["selector"]["matchLabels"])
    service = the(rendered, "Service")
    assert wanted.items() <= service.labels.items()
    assert [port["name"] for port in service["spec"]["ports"]] == ["metrics"]


def test_only_profiling_needs_a_capability(render: RenderChart) -> None:
    for profiling, added in (("false", []), ("true", ["SYS_ADMIN"])):
        rendered = render(CHART, sets=[*DCGM, f"dcgm.profiling={profiling}"])
        (exporter,) = pod(rendered)["containers"]
        assert list(exporter["securityContext"]["capabilities"].get("add", ())) == added
        counters = the(rendered, "ConfigMap", "-dcgm")["data"]["counters.csv"]
        assert ("DCGM_FI_PROF_" in counters) == bool(added)


def test_every_counter_has_a_field_a_type_and_a_help_text(render: RenderChart) -> None:
    rendered = render(CHART, files=["charts/gpu-metrics/ci/dcgm-values.yaml"])
    lines = the(rendered, "ConfigMap", "-dcgm")["data"]["counters.csv"].splitlines()
    assert len(lines) > 15
    assert not [line for line in lines if not re.fullmatch(r"DCGM_FI_\w+, (gauge|counter), [^,]+", line)]


def test_the_dashboard_shows_what_is_measured_by_default(render: RenderChart) -> None:
    rendered = render(CHART, sets=DCGM)
    dashboard = json.loads(the(rendered, "ConfigMap", "-dashboard")["data"]["bireme-gpus.json"])
    shown = set(re.findall(r"DCGM_\w+", json.dumps(dashboard)))
    counters = the(rendered, "ConfigMap", "-dcgm")["data"]["counters.csv"]
    assert shown <= set(re.findall(r"^DCGM_\w+", counters, re.MULTILINE))
    assert {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"} <= shown


def test_the_service_of_dcgm_has_the_name_that_others_look_for(render: RenderChart) -> None:
    name = "nvidia-dcgm-exporter"
    rendered = render("gpu-metrics", values={"agent": "dcgm", "dcgm": {"service": {"name": name}}})
    assert the(rendered, "Service").name == name
    (test,) = [each for each in rendered.manifests if each.kind == "Pod" and each.is_hook]
    assert f"http://{name}." in str(test["spec"])


def test_an_agent_runs_on_all_nodes_on_request(render: RenderChart) -> None:
    labels = {"kubernetes.io/os": "linux"}
    values = {"cloudwatch": {"region": "us-west-2", "image": {"registry": "r"}}, "nodeLabels": labels}
    pod = the(render("gpu-metrics", values=values), "DaemonSet")["spec"]["template"]["spec"]
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = [
        {each["key"]: list(each["values"]) for each in term["matchExpressions"]}
        for term in required["nodeSelectorTerms"]
    ]
    assert {"kubernetes.io/os": ["linux"]} in terms
