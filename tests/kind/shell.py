"""The pinned kubectl and helm on the cluster of the tests, and other helpers of the kind tests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bireme.clusters.kind import KindCluster
from bireme.tools import Toolbox
from tests.support import waiting

Values = Mapping[str, Any]

# Conditions here often start a process, for example kubectl, so they are checked less often.
until = partial(waiting.until, every=0.5)

# The nodes of `make test-kind`: three, with one accelerator and one EFA interface each.
NODE_TYPE = "p5.4xlarge"

# Asks the member in whose pod it runs, as root.
_ASK_ETCD = """
import json, os, sys
from pathlib import Path
from bireme_runtime.etcd import client as etcd
from bireme_runtime.etcd.server.auth import read_secret
secret = read_secret(Path(os.environ["BIREME_ETCD_USERS"]))
root = {"BIREME_ETCD_USERNAME": "root", "BIREME_ETCD_PASSWORD": secret["BIREME_ETCD_ROOT_PASSWORD"]}
client = etcd.client_from(os.environ["BIREME_ETCD_ENDPOINTS"], {**os.environ, **root})
print(json.dumps(client.call("/v3/" + sys.argv[1], json.loads(sys.argv[2]))))
"""


@dataclass(frozen=True)
class Shell:
    """The pinned kubectl and helm on the cluster of the session."""

    cluster: KindCluster
    toolbox: Toolbox

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """What kubectl prints; the test fails with its message when it fails."""
        return self._run([str(self.toolbox.path("kubectl")), *arguments], given)

    def attempt(self, *arguments: str) -> str | None:
        """What kubectl prints, or None when it fails, for example because a pod has just gone."""
        done = self._ask([str(self.toolbox.path("kubectl")), *arguments])
        return done.stdout if done.returncode == 0 else None

    def helm(self, *arguments: str) -> str:
        """What helm prints; the test fails with its message when it fails."""
        return self._run([str(self.toolbox.path("helm")), *arguments])

    def logs(self, pods: str, namespace: str) -> str:
        """All that the containers of the pods with these labels have printed so far."""
        return self.kubectl("logs", "-n", namespace, "-l", pods, "--tail=-1", "--prefix", "--ignore-errors")

    def uid_when_ready(self, namespace: str, pod: str) -> str:
        """The uid of a pod if it is Ready, otherwise an empty text."""
        jsonpath = '{.metadata.uid} {.status.conditions[?(@.type=="Ready")].status}'
        printed = self.attempt("get", "pod", pod, "-n", namespace, f"-o=jsonpath={jsonpath}")
        uid, _, ready = (printed or "").partition(" ")
        return uid if ready == "True" else ""

    def ask_etcd(self, namespace: str, member: str, call: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of etcd's gateway to ``kv/range`` and its like, through the member of that pod.

        It asks again while the pod is being replaced.
        """
        answers: list[dict[str, Any]] = []
        python = ("-c", "users", "--", "python3", "-c", _ASK_ETCD, call, json.dumps(body))

        def answered() -> bool:
            printed = self.attempt("exec", "-n", namespace, member, *python)
            answers.extend([json.loads(printed)] if printed else [])
            return bool(answers)

        until(answered, what=f"an answer of {member} to {call}")
        return answers[0]

    def kill_container(self, namespace: str, pod: str, container: str) -> None:
        """SIGKILL the first process of a container, from its node."""
        node, process = self.first_process(namespace, pod, container)
        self.cluster.on_node(node, "kill", "-9", process)

    def first_process(self, namespace: str, pod: str, container: str) -> tuple[str, str]:
        """The node of a pod, and the id on that node of a container's first process."""
        node = self.kubectl("get", "pod", pod, "-n", namespace, "-o=jsonpath={.spec.nodeName}")
        labels = f"io.kubernetes.pod.name={pod}", f"io.kubernetes.pod.namespace={namespace}"
        wanted = ("--name", f"^{container}$", *(word for label in labels for word in ("--label", label)))
        found = self.cluster.on_node(node, "crictl", "ps", "--quiet", *wanted)
        template = ("--output", "go-template", "--template", "{{.info.pid}}")
        return node, self.cluster.on_node(node, "crictl", "inspect", *template, found)

    def _run(self, command: list[str], given: str = "") -> str:
        done = self._ask(command, given)
        assert done.returncode == 0, f"{' '.join(command[1:])}: {done.stderr}{done.stdout}"
        return done.stdout

    def _ask(self, command: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
        where = [command[0], "--kubeconfig", str(self.cluster.kubeconfig), *command[1:]]
        return subprocess.run(where, input=given, capture_output=True, text=True, check=False, timeout=300)


def enforce(cluster: KindCluster, namespace: str, level: str) -> None:
    """Let a namespace enforce this Pod Security Standard."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    cluster.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
