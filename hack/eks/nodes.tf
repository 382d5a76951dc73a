locals {
  image = yamldecode(file("${path.module}/images.yaml"))[var.os]

  user_data = {
    for name, group in local.groups : name => templatefile("${path.module}/user-data.${var.os == "bottlerocket" ? "toml" : "mime"}", {
      huge_pages = group.efa > 0 ? local.huge_pages : 0
      nvme       = group.nvme
    })
  }

  # A CPU node has what EKS gives it.
  templates = merge({ cpu = { type = null, efa = 0, cards = 0, kind = "on-demand", reservation = null } }, local.groups)
}

resource "aws_iam_role" "node" {
  name               = "${var.name}-node"
  assume_role_policy = local.trust["ec2"]
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each   = toset(["AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"])
  role       = aws_iam_role.node.name
  policy_arn = "${local.policies}/${each.key}"
}

# Nodes that are near one another. Reserved capacity is where it is, and spot capacity is rarely in one place.
resource "aws_placement_group" "this" {
  for_each = { for name, group in local.groups : name => group if group.efa > 0 && group.kind == "on-demand" }
  name     = "${var.name}-${each.key}"
  strategy = "cluster"
}

resource "aws_launch_template" "node" {
  for_each      = local.templates
  name          = "${var.name}-${each.key}"
  instance_type = each.value.type
  user_data     = each.key == "cpu" ? null : base64encode(local.user_data[each.key])

  # EKS adds the cluster's security group only where no interface is described.
  vpc_security_group_ids = each.key == "cpu" || each.value.efa > 0 ? null : [local.cluster_group]

  # An interface with an address for pods on the first card, and EFA alone on the others.
  dynamic "network_interfaces" {
    for_each = each.value.efa > 0 ? range(each.value.cards) : []
    iterator = card
    content {
      network_card_index = card.value
      device_index       = card.value == 0 ? 0 : 1
      interface_type     = card.value > 0 ? "efa-only" : each.value.cards > each.value.efa ? "interface" : "efa"
      # EC2 allows no public address with several interfaces; the subnets give none.
      associate_public_ip_address = card.value == 0 ? false : null
      security_groups             = [local.cluster_group, aws_security_group.efa.id]
    }
  }

  dynamic "placement" {
    for_each = try(var.placement_groups[each.value.type], aws_placement_group.this[each.key].name, null)[*]
    content {
      group_name = placement.value
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = each.value.reservation == null ? [] : [1]
    content {
      capacity_reservation_target {
        capacity_reservation_id = each.value.reservation
      }
    }
  }

  dynamic "instance_market_options" {
    for_each = each.value.kind == "block" ? [1] : []
    content {
      market_type = "capacity-block"
    }
  }

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = var.os == "bottlerocket" ? "/dev/xvdb" : "/dev/xvda"
    ebs {
      volume_size           = 80
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }
}

resource "aws_eks_node_group" "cpu" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "cpu"
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = [for zone in var.zones : aws_subnet.private[zone].id]
  instance_types  = ["m7i.2xlarge"]
  ami_type        = local.image.cpu
  labels          = { "bireme/node-type" = "cpu" }
  launch_template {
    id      = aws_launch_template.node["cpu"].id
    version = aws_launch_template.node["cpu"].latest_version
  }
  scaling_config {
    desired_size = var.cpu_nodes
    min_size     = 0
    max_size     = var.cpu_nodes
  }
  depends_on = [aws_iam_role_policy_attachment.node, aws_eks_addon.early, aws_vpc_endpoint.service]
}

resource "aws_eks_node_group" "accelerated" {
  for_each        = local.groups
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = each.key
  node_role_arn   = aws_iam_role.node.arn
  # EFA, placement groups, FSx and reservations have one zone.
  subnet_ids    = [aws_subnet.private[var.zones[0]].id]
  ami_type      = local.image[each.value.ami]
  capacity_type = lookup({ spot = "SPOT", block = "CAPACITY_BLOCK" }, each.value.kind, "ON_DEMAND")
  labels        = { "bireme/node-type" = each.value.type }
  taint {
    key    = each.value.resource
    value  = "present"
    effect = "NO_SCHEDULE"
  }
  launch_template {
    id      = aws_launch_template.node[each.key].id
    version = aws_launch_template.node[each.key].latest_version
  }
  scaling_config {
    desired_size = each.value.count
    min_size     = 0
    max_size     = each.value.count
  }
  node_repair_config {
    enabled = true
  }
  # A newer image or template would replace nodes under a running job (README.md, "Newer nodes").
  lifecycle {
    ignore_changes = [launch_template, release_version]
  }
  depends_on = [aws_iam_role_policy_attachment.node, aws_eks_addon.early, aws_vpc_endpoint.service]
}
