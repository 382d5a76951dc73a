data "aws_partition" "this" {}

data "aws_caller_identity" "this" {}

locals {
  policies = "arn:${data.aws_partition.this.partition}:iam::aws:policy"
}

resource "aws_iam_role" "cluster" {
  name               = "${var.name}-cluster"
  assume_role_policy = local.trust["eks"]
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "${local.policies}/AmazonEKSClusterPolicy"
}

resource "aws_eks_cluster" "this" {
  name     = var.name
  role_arn = aws_iam_role.cluster.arn
  version  = var.kubernetes

  bootstrap_self_managed_addons = false

  # Without it a version that nobody raises costs six times as much an hour after its standard support.
  upgrade_policy {
    support_type = "STANDARD"
  }

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  kubernetes_network_config {
    ip_family = var.ipv6 ? "ipv6" : "ipv4"
  }

  vpc_config {
    subnet_ids              = [for zone in var.zones : aws_subnet.private[zone].id]
    endpoint_private_access = true
    endpoint_public_access  = length(var.admitted) > 0
    public_access_cidrs     = length(var.admitted) > 0 ? var.admitted : null
  }

  depends_on = [aws_iam_role_policy_attachment.cluster]
}

resource "aws_eks_access_entry" "administrator" {
  for_each      = toset(var.administrators)
  cluster_name  = aws_eks_cluster.this.name
  principal_arn = each.key
}

resource "aws_eks_access_policy_association" "administrator" {
  for_each      = aws_eks_access_entry.administrator
  cluster_name  = aws_eks_cluster.this.name
  principal_arn = each.value.principal_arn
  policy_arn    = "arn:${data.aws_partition.this.partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
  access_scope {
    type = "cluster"
  }
}
