locals {
  node_groups = merge({ cpu = aws_eks_node_group.cpu }, aws_eks_node_group.accelerated)
}

# At `expires` every group has no nodes, and so nearly all costs end; the cluster and its file systems stay.
resource "aws_autoscaling_schedule" "expires" {
  for_each               = var.expires == null ? {} : local.node_groups
  scheduled_action_name  = "bireme-expires"
  autoscaling_group_name = each.value.resources[0].autoscaling_groups[0].name
  start_time             = var.expires
  min_size               = 0
  desired_capacity       = 0
  max_size               = -1
}
