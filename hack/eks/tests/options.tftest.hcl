mock_provider "aws" {
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_resource "aws_vpc" {
    defaults = { ipv6_cidr_block = "2001:db8:0:100::/56" }
  }
  mock_resource "aws_sqs_queue" {
    defaults = { arn = "arn:aws:sqs:us-west-2:123456789012:bireme" }
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
  assert {
    condition     = jsondecode(aws_eks_addon.early["vpc-cni"].configuration_values).enableNetworkPolicy == "true"
    error_message = "NetworkPolicies hold"
  }
  assert {
    condition     = length(aws_vpc_endpoint.service) == 0 && length(aws_sqs_queue.karpenter) == 0 && !contains(keys(aws_iam_role.addon), "karpenter")
    error_message = "endpoints and Karpenter are options"
  }
}

run "without_internet" {
  command = apply
  variables {
    internet = false
    fsx_gib  = 1200
    nodes    = { "p5.48xlarge" = 2 }
    capacity = { "p5.48xlarge" = { kind = "block", reservation = "cr-0a2" } }
  }
  assert {
    condition     = length(aws_nat_gateway.this) + length(aws_internet_gateway.this) + length(aws_egress_only_internet_gateway.this) + length(aws_eip.nat) + length(aws_subnet.public) == 0
    error_message = "there is no way outside"
  }
  assert {
    condition     = length(setsubtract(["ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "elasticfilesystem", "fsx", "logs", "sts"], keys(aws_vpc_endpoint.service))) == 0
    error_message = "AWS's services have endpoints"
  }
  assert {
    condition     = alltrue([for each in values(aws_vpc_endpoint.service) : each.private_dns_enabled && each.security_group_ids == toset(["sg-cluster"]) && length(each.subnet_ids) == 2])
    error_message = "nodes, which are in the cluster's group, reach the endpoints by AWS's own names"
  }
}

run "ipv6" {
  command = apply
  variables {
    ipv6  = true
    nodes = { "p4d.24xlarge" = 2, "trn2.48xlarge" = 1 }
  }
  assert {
    condition     = one(aws_eks_cluster.this.kubernetes_network_config).ip_family == "ipv6"
    error_message = "pods have IPv6"
  }
  assert {
    condition     = [for each in values(aws_subnet.private) : each.ipv6_cidr_block if each.assign_ipv6_address_on_creation] == ["2001:db8:0:100::/64", "2001:db8:0:101::/64"]
    error_message = "each subnet gives addresses of its own"
  }
  assert {
    condition     = contains([for each in aws_route_table.private.route : each.ipv6_cidr_block], "::/0") && length(aws_route_table.private.route) == 2
    error_message = "pods reach the internet by both families"
  }
  assert {
    condition     = contains(jsondecode(aws_iam_policy.own["vpc-cni"].policy).Statement[0].Action, "ec2:AssignIpv6Addresses") && aws_iam_role_policy_attachment.addon["vpc-cni"].policy_arn == aws_iam_policy.own["vpc-cni"].arn
    error_message = "the CNI may assign IPv6 addresses"
  }
}

# tests/eks compares the role with what Karpenter calls.
run "karpenter" {
  command = apply
  variables {
    karpenter = true
  }
  assert {
    condition     = aws_eks_pod_identity_association.account["karpenter"].namespace == "kube-system" && aws_iam_role_policy_attachment.addon["karpenter"].policy_arn == aws_iam_policy.own["karpenter"].arn
    error_message = "Karpenter's ServiceAccount has the role"
  }
  assert {
    condition     = length(aws_cloudwatch_event_target.karpenter) == 4 && alltrue([for each in values(aws_cloudwatch_event_target.karpenter) : each.arn == aws_sqs_queue.karpenter[0].arn])
    error_message = "AWS tells the queue what it takes back"
  }
  assert {
    condition     = jsondecode(aws_sqs_queue.karpenter[0].policy).Statement[0].Resource == aws_sqs_queue.karpenter[0].arn
    error_message = "events may be sent to this queue"
  }
  assert {
    condition     = yamldecode(output.karpenter_values).settings.interruptionQueue == aws_sqs_queue.karpenter[0].name
    error_message = "Karpenter is told the queue"
  }
}

run "fsx_and_ipv6_are_refused" {
  command = plan
  variables {
    ipv6    = true
    fsx_gib = 1200
  }
  expect_failures = [var.ipv6]
}

run "karpenter_without_internet_is_refused" {
  command = plan
  variables {
    karpenter = true
    internet  = false
  }
  expect_failures = [var.karpenter]
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
    condition     = endswith(aws_iam_role_policy_attachment.addon["gpu-metrics"].policy_arn, "/CloudWatchAgentServerPolicy") && aws_eks_pod_identity_association.account["gpu-metrics"].namespace == "default"
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
