"""The names of all labels, annotations and taints that the harness reads or writes."""

from __future__ import annotations

# --- on objects of a chart ---
RELEASE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
OURS = "app.kubernetes.io/part-of=bireme"
HOOK_ANNOTATION = "helm.sh/hook"
# Digests of the parts of an object that Kubernetes does not change in place, as JSON: part → digest.
IMMUTABLE_ANNOTATION = "bireme/immutable"
# Names a field that the chart generates on the cluster and keeps: two renders never agree on it.
GENERATED_ANNOTATION = "bireme/generated"
# A sentence for whoever reads the plan.
ADVICE_ANNOTATION = "bireme/advice"

# The repository and the commit that a pod clones, as URL@COMMIT.
SOURCE_ANNOTATION = "bireme/source"

# --- on Jobs that follow the capacity ---
# The chart's: bounds and pace, as JSON. A label of the same name finds such Jobs.
AUTOSCALE_ANNOTATION = "bireme/autoscale"
# The controller's: when it resized the Job last.
RESIZED_ANNOTATION = "bireme/resized"
# The controller's, on any Job of the charts: when which pod failed first, and what it said last.
FAILURE_ANNOTATION = "bireme/first-failure"

# --- of Kueue, on jobs and pods ---
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
POD_GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
QUEUE_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"

# --- on pods, set by their controllers ---
JOB_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
POD_TEMPLATE_HASH_LABEL = "pod-template-hash"
# The name of the kubeflow job, on the pods of MPIJobs and PyTorchJobs alike.
KUBEFLOW_JOB_LABEL = "training.kubeflow.org/job-name"
# The exit code with which kwok ends a fake pod.
EXIT_CODE_ANNOTATION = "bireme/exit-code"

# --- on nodes ---
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
# The prefix of Karpenter's labels for instance types.
KARPENTER_INSTANCE = "karpenter.k8s.aws/instance-"
CAPACITY_TYPE_LABEL = "karpenter.sh/capacity-type"
# The maker of GPUs, as EKS Auto Mode has it, and a mark of NVIDIA's GPU feature discovery.
AUTO_GPU_MAKER_LABEL = "eks.amazonaws.com/instance-gpu-manufacturer"
GPU_PRESENT_LABEL = "nvidia.com/gpu.present"
# HyperPod's label and taint: whether a node passed its health checks.
HYPERPOD_HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"
# NVSentinel's annotation of the nodes that it has cordoned: the reason, as JSON.
QUARANTINE_ANNOTATION = "quarantineHealthEvent"
# The taint of our controller on ill nodes. It keeps new pods away.
ILL_TAINT = "bireme/ill"
ARCHITECTURE_LABEL = "kubernetes.io/arch"
HOSTNAME_LABEL = "kubernetes.io/hostname"
OS_LABEL = "kubernetes.io/os"
REGION_LABEL = "topology.kubernetes.io/region"
ZONE_LABEL = "topology.kubernetes.io/zone"
# A node that kwok simulates: the label and value of Karpenter's provider of such nodes.
FAKE_LABEL = "kwok.x-k8s.io/node"
FAKE_VALUE = "fake"
# The name of the node's type in ``--nodes``: an instance type, or ``cpu``.
NODE_TYPE_LABEL = "bireme/node-type"
# Takes a node away from kwok: its kubelet stops answering.
CUT_LABEL = "bireme/cut"
NOT_READY_TAINT = "node.kubernetes.io/not-ready"
UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
CONTROL_PLANE_TAINT = "node-role.kubernetes.io/control-plane"

# --- on storage classes ---
DEFAULT_CLASS_ANNOTATION = "storageclass.kubernetes.io/is-default-class"
