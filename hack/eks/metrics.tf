# A line for the first GPU of each node, also of nodes that come later.
resource "aws_cloudwatch_dashboard" "gpus" {
  count          = var.gpu_metrics ? 1 : 0
  dashboard_name = "${var.name}-gpus"
  dashboard_body = jsonencode({ widgets = [{ type = "metric", width = 24, height = 12, properties = {
    title   = "Utilisation of GPU 0 of each node, %", region = var.region, view = "timeSeries", yAxis = { left = { min = 0, max = 100 } }
    metrics = [[{ expression = "SEARCH('Namespace=\"CWAgent\" MetricName=\"nvidia_smi_utilization_gpu\" index=\"0\"', 'Average', 60)" }]]
  } }] })
}
