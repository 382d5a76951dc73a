# CloudWatch's agent of charts/gpu-metrics: the ServiceAccount `gpu-metrics` of the namespace default may send metrics.
resource "aws_iam_role" "metrics" {
  count              = var.gpu_metrics ? 1 : 0
  name               = "${var.name}-gpu-metrics"
  assume_role_policy = local.pod_identity
}

resource "aws_iam_role_policy_attachment" "metrics" {
  count      = var.gpu_metrics ? 1 : 0
  role       = aws_iam_role.metrics[0].name
  policy_arn = "${local.policies}/CloudWatchAgentServerPolicy"
}

resource "aws_eks_pod_identity_association" "metrics" {
  count           = var.gpu_metrics ? 1 : 0
  cluster_name    = aws_eks_cluster.this.name
  namespace       = "default"
  service_account = "gpu-metrics"
  role_arn        = aws_iam_role.metrics[0].arn
}

# A line for the first GPU of each node, also of nodes that come later.
resource "aws_cloudwatch_dashboard" "gpus" {
  count          = var.gpu_metrics ? 1 : 0
  dashboard_name = "${var.name}-gpus"
  dashboard_body = jsonencode({
    widgets = [{
      type = "metric", width = 24, height = 12
      properties = {
        title   = "Utilisation of GPU 0 of each node, %", region = var.region, view = "timeSeries"
        period  = 60, stat = "Average", yAxis = { left = { min = 0, max = 100 } }
        metrics = [[{ expression = "SEARCH('Namespace=\"CWAgent\" MetricName=\"nvidia_smi_utilization_gpu\" index=\"0\"', 'Average', 60)" }]]
      }
    }]
  })
}
