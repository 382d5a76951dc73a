mock_provider "aws" {
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/bireme" }
  }
  mock_resource "aws_iam_policy" {
    defaults = { arn = "arn:aws:iam::123456789012:policy/bireme" }
  }
  mock_resource "aws_eks_cluster" {
    defaults = { vpc_config = { cluster_security_group_id = "sg-cluster" } }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
  }
  mock_resource "aws_eks_node_group" {
    defaults = { resources = [{ autoscaling_groups = [{ name = "asg" }] }] }
  }
  mock_resource "aws_efs_file_system" {
    defaults = { id = "fs-0123456789abcdef0" }
  }
  mock_resource "aws_fsx_lustre_file_system" {
    defaults = {
      id         = "fs-0fedcba9876543210"
      dns_name   = "fs-0fedcba9876543210.fsx.us-west-2.amazonaws.com"
      mount_name = "fsx"
    }
  }
}

run "defaults" {
  command = apply
  assert {
    condition     = !aws_eks_cluster.this.vpc_config[0].endpoint_public_access && aws_eks_cluster.this.vpc_config[0].endpoint_private_access
    error_message = "the API server answers only inside the VPC"
  }
  assert {
    condition     = one(aws_eks_cluster.this.upgrade_policy).support_type == "STANDARD"
    error_message = "no version costs more after its standard support"
  }
  assert {
    condition     = alltrue([for subnet in concat(values(aws_subnet.public), values(aws_subnet.private)) : !coalesce(subnet.map_public_ip_on_launch, false)])
    error_message = "no subnet gives public addresses"
  }
  assert {
    condition     = alltrue([for each in concat(values(aws_subnet.private), [aws_security_group.efa]) : each.tags["karpenter.sh/discovery"] == var.name])
    error_message = "bireme karpenter finds subnets and the security group of EFA by this tag"
  }
  assert {
    condition     = length(aws_autoscaling_schedule.expires) == 0 && length(aws_iam_role.data) == 0 && !contains(keys(aws_iam_role.addon), "gpu-metrics") && !contains(keys(aws_eks_addon.late), "amazon-cloudwatch-observability")
    error_message = "guard and CloudWatch are options"
  }
}

# tests/eks compares what this makes with the instance table.
run "everything" {
  command = apply
  variables {
    nodes      = { for file in fileset("../../values/instances", "*.yaml") : trimsuffix(file, ".yaml") => 3 }
    admitted   = ["192.0.2.0/24"]
    fsx_gib    = 2400
    buckets    = ["photos"]
    cloudwatch = true
    expires    = "2026-12-01T18:00:00Z"

    gpu_metrics = true
  }
  assert {
    condition     = endswith(aws_iam_role_policy_attachment.addon["gpu-metrics"].policy_arn, "/CloudWatchAgentServerPolicy") && aws_eks_pod_identity_association.metrics[0].service_account == "gpu-metrics"
    error_message = "the agent of charts/gpu-metrics may send metrics"
  }
  assert {
    condition     = strcontains(jsondecode(aws_cloudwatch_dashboard.gpus[0].dashboard_body).widgets[0].properties.metrics[0][0].expression, "index=\"0\"")
    error_message = "the dashboard shows one GPU of each node"
  }
  assert {
    condition     = aws_eks_cluster.this.vpc_config[0].endpoint_public_access && aws_eks_cluster.this.vpc_config[0].public_access_cidrs == toset(["192.0.2.0/24"])
    error_message = "only admitted networks reach the API server"
  }
  assert {
    condition = alltrue([for each in jsondecode(aws_iam_role_policy.data[0].policy).Statement :
      alltrue([for resource in each.Resource : startswith(resource, "arn:aws:s3:::photos")])
    ])
    error_message = "the datasets' role reaches the named buckets only"
  }
}

run "bottlerocket" {
  command = apply
  variables {
    os    = "bottlerocket"
    nodes = { "p4d.24xlarge" = 1, "trn1.32xlarge" = 1, "g5.xlarge" = 1, "p3.8xlarge" = 1 }
  }
  assert {
    condition     = aws_eks_node_group.accelerated["p4d-24xlarge"].ami_type == "BOTTLEROCKET_x86_64_NVIDIA" && aws_eks_node_group.accelerated["trn1-32xlarge"].ami_type == "BOTTLEROCKET_x86_64"
    error_message = "images of Bottlerocket"
  }
}

run "bought" {
  command = apply
  variables {
    nodes = { "p4d.24xlarge" = 3, "p5.48xlarge" = 2, "p5e.48xlarge" = 4, "g5.xlarge" = 2 }
    capacity = {
      "p5.48xlarge"  = { kind = "reservation", reservation = "cr-0a1" }
      "p5e.48xlarge" = { kind = "block", reservation = "cr-0a2" }
      "g5.xlarge"    = { kind = "spot" }
    }
    expires = "2026-12-01T18:00:00Z"
  }
  assert {
    condition     = { for name, group in aws_eks_node_group.accelerated : name => group.capacity_type } == { "p4d-24xlarge" = "ON_DEMAND", "p5-48xlarge" = "ON_DEMAND", "p5e-48xlarge" = "CAPACITY_BLOCK", "g5-xlarge" = "SPOT" }
    error_message = "capacity types"
  }
  assert {
    condition     = one(one(aws_launch_template.node["p5e-48xlarge"].capacity_reservation_specification).capacity_reservation_target).capacity_reservation_id == "cr-0a2"
    error_message = "the block's nodes come from it"
  }
  assert {
    condition     = one(aws_launch_template.node["p5e-48xlarge"].instance_market_options).market_type == "capacity-block" && length(aws_launch_template.node["p5-48xlarge"].instance_market_options) == 0
    error_message = "only a block is a market"
  }
  assert {
    condition     = output.quotas == { "L-1216C47A" = 16, "L-417A185B" = 3 * 96 + 2 * 192, "L-3819A6DF" = 8 }
    error_message = "quotas: ${jsonencode(output.quotas)}"
  }
  assert {
    condition     = output.without_price == ["p5e.48xlarge"] && abs(output.cost_per_hour - (0.1 + 2 * 0.4032 + 3 * 21.957642 + 2 * 55.04 + 2 * 1.006)) < 0.001
    error_message = "cost: ${output.cost_per_hour}"
  }
  assert {
    condition     = length(aws_autoscaling_schedule.expires) == 5 && alltrue([for each in values(aws_autoscaling_schedule.expires) : each.desired_capacity == 0 && each.start_time == "2026-12-01T18:00:00Z"])
    error_message = "every group ends at expires"
  }
}

run "near_one_another" {
  command = apply
  variables {
    nodes = { "p4d.24xlarge" = 3, "p5.48xlarge" = 2, "p5e.48xlarge" = 4, "p5en.48xlarge" = 4, "g5.xlarge" = 2 }
    capacity = {
      "p5.48xlarge"   = { kind = "reservation", reservation = "cr-0a1" }
      "p5e.48xlarge"  = { kind = "block", reservation = "cr-0a2" }
      "p5en.48xlarge" = { kind = "spot" }
    }
    placement_groups = { "p5.48xlarge" = "bought" }
  }
  assert {
    condition     = keys(aws_placement_group.this) == ["p4d-24xlarge"]
    error_message = "only capacity on demand has a placement group of its own"
  }
  assert {
    condition     = { for name, template in aws_launch_template.node : name => one(template.placement).group_name if length(template.placement) > 0 } == { "p4d-24xlarge" = "bireme-p4d-24xlarge", "p5-48xlarge" = "bought" }
    error_message = "reserved and spot capacity are in no group but one that is named"
  }
}

run "unknown_types_are_refused" {
  command = plan
  variables {
    nodes = { "p4d.24xlarg" = 1 }
  }
  expect_failures = [var.nodes]
}

run "a_block_needs_its_id" {
  command = plan
  variables {
    nodes    = { "p5e.48xlarge" = 1 }
    capacity = { "p5e.48xlarge" = { kind = "block" } }
  }
  expect_failures = [var.capacity]
}

run "one_zone_is_refused" {
  command = plan
  variables {
    zones = ["us-west-2a"]
  }
  expect_failures = [var.zones]
}

run "a_day_is_no_time" {
  command = plan
  variables {
    expires = "tomorrow"
  }
  expect_failures = [var.expires]
}
