output "cost_per_hour" {
  description = "List price of control plane and nodes in USD; see values/prices.yaml for its date, region and source"
  value = sum(concat(
    [local.prices.controlPlane, var.cpu_nodes * local.prices.onDemand["m7i.2xlarge"]],
    [for type, count in var.nodes : count * try(local.prices.onDemand[type], 0)],
  ))
}

output "without_price" {
  description = "Types for which AWS lists no price; they are not in cost_per_hour"
  value       = [for type in keys(var.nodes) : type if !can(local.prices.onDemand[type])]
}

output "quotas" {
  description = "vCPUs that the quotas of EC2 must allow, by their code in Service Quotas"
  value = {
    for code, counts in merge(
      { (local.prices.quotas.m.onDemand) = [var.cpu_nodes * 8] },
      {
        for name, group in local.groups :
        local.prices.quotas[regex("^(?:trn|p|g|m)", group.type)][group.kind == "spot" ? "spot" : "onDemand"] =>
        group.count * local.instances[group.type].vcpu... if group.kind != "block"
      },
    ) : code => sum(counts)
  }
}

output "kubeconfig_command" {
  value = "aws eks update-kubeconfig --region ${var.region} --name ${var.name}"
}

output "efs_values" {
  description = "Values for charts/efs: terraform output -raw efs_values > efs.yaml"
  value = var.efs ? yamlencode({
    # A new file system belongs to root; the jobs' pods are user 1000.
    volumes = { efsvol = { type = "csi", fileSystemId = aws_efs_file_system.this[0].id, uid = 1000, gid = 1000 } }
  }) : null
}

output "fsx_values" {
  description = "Values for charts/fsx: terraform output -raw fsx_values > fsx.yaml"
  value = var.fsx_gib > 0 ? yamlencode({
    provisioning = "static"
    zone         = var.zones[0]
    size         = "${var.fsx_gib}Gi"
    static = {
      fileSystemId = aws_fsx_lustre_file_system.this[0].id
      dnsName      = aws_fsx_lustre_file_system.this[0].dns_name
      mountName    = aws_fsx_lustre_file_system.this[0].mount_name
    }
  }) : null
}

output "fsx_dynamic_values" {
  description = "Values for charts/fsx with a file system that the driver makes: terraform output -raw fsx_dynamic_values > fsx-dynamic.yaml"
  value = yamlencode({
    provisioning = "dynamic"
    zone         = var.zones[0]
    dynamic      = { subnetId = aws_subnet.private[var.zones[0]].id, securityGroupIds = [local.cluster_group] }
  })
}

output "dataset_values" {
  description = "Values for charts/dataset: terraform output -raw dataset_values > dataset.yaml"
  value       = length(var.buckets) > 0 ? yamlencode({ serviceAccount = { create = true, name = "data" } }) : null
}

output "karpenter_values" {
  description = "Values for Karpenter's chart: terraform output -raw karpenter_values > karpenter.yaml"
  value = var.karpenter ? yamlencode({
    settings = { clusterName = var.name, interruptionQueue = var.name, featureGates = { nodeOverlay = true } }
  }) : null
}

output "gpu_metrics_values" {
  description = "Values for charts/gpu-metrics: terraform output -raw gpu_metrics_values > gpu-metrics.yaml"
  value = var.gpu_metrics ? yamlencode({
    cloudwatch = { region = var.region, containerInsights = { enabled = true, clusterName = var.name } }
  }) : null
}
