# Karpenter's controller has its role of addons.tf. AWS tells it by a queue which nodes it takes back.
locals {
  queue = "arn:${data.aws_partition.this.partition}:sqs:${var.region}:${data.aws_caller_identity.this.account_id}:${var.name}"
  events = {
    spot      = "EC2 Spot Instance Interruption Warning"
    rebalance = "EC2 Instance Rebalance Recommendation"
    state     = "EC2 Instance State-change Notification"
    health    = "AWS Health Event"
  }
}

resource "aws_sqs_queue" "karpenter" {
  count                     = var.karpenter ? 1 : 0
  name                      = var.name
  message_retention_seconds = 300
  sqs_managed_sse_enabled   = true
  policy = jsonencode({ Version = "2012-10-17", Statement = [
    { Effect = "Allow", Action = "sqs:SendMessage", Resource = local.queue, Principal = { Service = ["events.amazonaws.com"] } },
    { Effect = "Deny", Action = "sqs:*", Resource = local.queue, Principal = "*", Condition = { Bool = { "aws:SecureTransport" = "false" } } },
  ] })
}

resource "aws_cloudwatch_event_rule" "karpenter" {
  for_each      = { for name, each in local.events : name => each if var.karpenter }
  name          = "${var.name}-karpenter-${each.key}"
  event_pattern = jsonencode({ source = [each.key == "health" ? "aws.health" : "aws.ec2"], detail-type = [each.value] })
}

resource "aws_cloudwatch_event_target" "karpenter" {
  for_each = aws_cloudwatch_event_rule.karpenter
  rule     = each.value.name
  arn      = aws_sqs_queue.karpenter[0].arn
}
