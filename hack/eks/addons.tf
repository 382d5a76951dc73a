locals {
  # Each driver has a role of its own, which only its ServiceAccount can take.
  identities = {
    vpc-cni = {
      account = "aws-node"
      policy  = "${local.policies}/AmazonEKS_CNI_Policy"
    }
    aws-ebs-csi-driver = {
      account = "ebs-csi-controller-sa"
      policy  = "${local.policies}/service-role/AmazonEBSCSIDriverPolicy"
    }
    aws-efs-csi-driver = {
      account = "efs-csi-controller-sa"
      policy  = "${local.policies}/service-role/AmazonEFSCSIDriverPolicy"
    }
    aws-fsx-csi-driver = {
      account = "fsx-csi-controller-sa"
      policy  = aws_iam_policy.fsx.arn
    }
  }
  cloudwatch = {
    amazon-cloudwatch-observability = {
      account = "cloudwatch-agent"
      policy  = "${local.policies}/CloudWatchAgentServerPolicy"
    }
  }
  all_identities = merge(local.identities, var.cloudwatch ? local.cloudwatch : {})
  # The agent of charts/gpu-metrics is no add-on.
  agent = { account = "gpu-metrics", policy = "${local.policies}/CloudWatchAgentServerPolicy" }
  roles = merge(local.all_identities, var.gpu_metrics ? { gpu-metrics = local.agent } : {})

  # Pods take a role by EKS Pod Identity.
  pod_identity = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = ["sts:AssumeRole", "sts:TagSession"]
      Principal = { Service = "pods.eks.amazonaws.com" }
    }]
  })
}

# AWS has no policy for the driver of FSx but one with all rights on FSx.
resource "aws_iam_policy" "fsx" {
  name   = "${var.name}-fsx-csi-driver"
  policy = file("${path.module}/fsx-policy.json")
}

resource "aws_iam_role" "addon" {
  for_each           = local.roles
  name               = "${var.name}-${each.key}"
  assume_role_policy = local.pod_identity
}

resource "aws_iam_role_policy_attachment" "addon" {
  for_each   = local.roles
  role       = aws_iam_role.addon[each.key].name
  policy_arn = each.value.policy
}

# Nodes become Ready only with these.
resource "aws_eks_addon" "early" {
  for_each     = toset(["vpc-cni", "kube-proxy", "eks-pod-identity-agent"])
  cluster_name = aws_eks_cluster.this.name
  addon_name   = each.key
  dynamic "pod_identity_association" {
    for_each = each.key == "vpc-cni" ? [1] : []
    content {
      role_arn        = aws_iam_role.addon[each.key].arn
      service_account = local.all_identities[each.key].account
    }
  }
  depends_on = [aws_iam_role_policy_attachment.addon]
}

resource "aws_eks_addon" "late" {
  for_each     = toset(concat(["coredns"], [for name in keys(local.all_identities) : name if name != "vpc-cni"]))
  cluster_name = aws_eks_cluster.this.name
  addon_name   = each.key
  dynamic "pod_identity_association" {
    for_each = contains(keys(local.all_identities), each.key) ? [1] : []
    content {
      role_arn        = aws_iam_role.addon[each.key].arn
      service_account = local.all_identities[each.key].account
    }
  }
  depends_on = [aws_iam_role_policy_attachment.addon, aws_eks_node_group.cpu]
}
