resource "aws_efs_file_system" "this" {
  count           = var.efs ? 1 : 0
  encrypted       = true
  throughput_mode = "elastic"
  tags            = { Name = var.name }
}

resource "aws_efs_mount_target" "this" {
  for_each        = var.efs ? aws_subnet.private : {}
  file_system_id  = aws_efs_file_system.this[0].id
  subnet_id       = each.value.id
  security_groups = [local.cluster_group]
}

resource "aws_fsx_lustre_file_system" "this" {
  count                       = var.fsx_gib > 0 ? 1 : 0
  deployment_type             = "PERSISTENT_2"
  file_system_type_version    = "2.15"
  storage_capacity            = var.fsx_gib
  per_unit_storage_throughput = 250
  subnet_ids                  = [aws_subnet.private[var.zones[0]].id]
  security_group_ids          = [local.cluster_group]
  tags                        = { Name = var.name }
}
