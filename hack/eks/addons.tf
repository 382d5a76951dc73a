locals {
  # Each driver has a role of its own, which only its ServiceAccount can take, and so has charts/gpu-metrics' agent.
  accounts = yamldecode(file("${path.module}/accounts.yaml"))
  options  = { amazon-cloudwatch-observability = var.cloudwatch, gpu-metrics = var.gpu_metrics, karpenter = var.karpenter }
  roles    = { for name, each in local.accounts : name => each if lookup(local.options, name, true) }

  # AWS has no policy for these, or one with more rights.
  own = [for name, each in local.roles : name if !can(each.policy) || (var.ipv6 && name == "vpc-cni")]

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

resource "aws_iam_policy" "own" {
  for_each = toset(local.own)
  name     = "${var.name}-${each.key}"
  policy = templatefile("${path.module}/policies/${each.key}.json", {
    arn     = "arn:${data.aws_partition.this.partition}"
    cluster = var.name
    region  = var.region
    nodes   = aws_iam_role.node.arn
  })
}

resource "aws_iam_role" "addon" {
  for_each           = local.roles
  name               = "${var.name}-${each.key}"
  assume_role_policy = local.trust["pods.eks"]
}

resource "aws_iam_role_policy_attachment" "addon" {
  for_each   = local.roles
  role       = aws_iam_role.addon[each.key].name
  policy_arn = contains(local.own, each.key) ? aws_iam_policy.own[each.key].arn : "${local.policies}/${each.value.policy}"
}

# Accounts of what is no add-on.
resource "aws_eks_pod_identity_association" "account" {
  for_each        = { for name, each in local.roles : name => each if can(each.namespace) }
  cluster_name    = aws_eks_cluster.this.name
  namespace       = each.value.namespace
  service_account = each.value.account
  role_arn        = aws_iam_role.addon[each.key].arn
}

# Nodes become Ready only with these.
resource "aws_eks_addon" "early" {
  for_each     = toset(["vpc-cni", "kube-proxy", "eks-pod-identity-agent", "eks-node-monitoring-agent"])
  cluster_name = aws_eks_cluster.this.name
  addon_name   = each.key
  # Without it no NetworkPolicy holds.
  configuration_values = each.key == "vpc-cni" ? jsonencode({ enableNetworkPolicy = "true" }) : null
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
  for_each     = toset(concat(["coredns"], [for name, each in local.roles : name if name != "vpc-cni" && !can(each.namespace)]))
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
