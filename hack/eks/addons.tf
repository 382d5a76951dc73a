locals {
  # Each driver has a role of its own, which only its ServiceAccount can take, and so has charts/gpu-metrics' agent.
  accounts = yamldecode(file("${path.module}/accounts.yaml"))
  left_out = concat(var.cloudwatch ? [] : ["amazon-cloudwatch-observability"], var.gpu_metrics ? [] : ["gpu-metrics"])
  roles    = { for name, each in local.accounts : name => each if !contains(local.left_out, name) }

  # Who takes a role; pods do so by EKS Pod Identity.
  trust = {
    for service in ["eks", "ec2", "pods.eks"] : service => jsonencode({
      Version = "2012-10-17"
      Statement = [{
        Effect    = "Allow"
        Action    = service == "pods.eks" ? ["sts:AssumeRole", "sts:TagSession"] : ["sts:AssumeRole"]
        Principal = { Service = "${service}.amazonaws.com" }
      }]
    })
  }
}

# AWS has no policy for the driver of FSx but one with all rights on FSx.
resource "aws_iam_policy" "fsx" {
  name   = "${var.name}-fsx-csi-driver"
  policy = file("${path.module}/fsx-policy.json")
}

resource "aws_iam_role" "addon" {
  for_each           = local.roles
  name               = "${var.name}-${each.key}"
  assume_role_policy = local.trust["pods.eks"]
}

resource "aws_iam_role_policy_attachment" "addon" {
  for_each   = local.roles
  role       = aws_iam_role.addon[each.key].name
  policy_arn = each.key == "aws-fsx-csi-driver" ? aws_iam_policy.fsx.arn : "${local.policies}/${each.value.policy}"
}

# Nodes become Ready only with these.
resource "aws_eks_addon" "early" {
  for_each     = toset(["vpc-cni", "kube-proxy", "eks-pod-identity-agent", "eks-node-monitoring-agent"])
  cluster_name = aws_eks_cluster.this.name
  addon_name   = each.key
  dynamic "pod_identity_association" {
    for_each = each.key == "vpc-cni" ? [1] : []
    content {
      role_arn        = aws_iam_role.addon[each.key].arn
      service_account = local.roles[each.key].account
    }
  }
  depends_on = [aws_iam_role_policy_attachment.addon]
}

resource "aws_eks_addon" "late" {
  for_each     = toset(concat(["coredns"], [for name in keys(local.roles) : name if !contains(["vpc-cni", "gpu-metrics"], name)]))
  cluster_name = aws_eks_cluster.this.name
  addon_name   = each.key
  dynamic "pod_identity_association" {
    for_each = contains(keys(local.roles), each.key) ? [1] : []
    content {
      role_arn        = aws_iam_role.addon[each.key].arn
      service_account = local.roles[each.key].account
    }
  }
  depends_on = [aws_iam_role_policy_attachment.addon, aws_eks_node_group.cpu]
}
