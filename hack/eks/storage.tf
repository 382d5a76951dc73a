resource "aws_security_group" "storage" {
  name        = "${var.name}-storage"
  description = "NFS and Lustre from the nodes"
  vpc_id      = aws_vpc.this.id
}

# NFS and Lustre from the nodes. Lustre's servers also talk to one another.
resource "aws_vpc_security_group_ingress_rule" "storage" {
  for_each = {
    nfs         = [2049, 2049]
    lustre      = [988, 988]
    lustre-more = [1018, 1023]
    among       = [988, 988]
    among-more  = [1018, 1023]
  }
  security_group_id            = aws_security_group.storage.id
  referenced_security_group_id = startswith(each.key, "among") ? aws_security_group.storage.id : aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
  description                  = each.key
  ip_protocol                  = "tcp"
  from_port                    = each.value[0]
  to_port                      = each.value[1]
}

resource "aws_vpc_security_group_egress_rule" "storage" {
  security_group_id = aws_security_group.storage.id
  description       = "inside the VPC"
  ip_protocol       = "-1"
  cidr_ipv4         = var.cidr
}

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
  security_groups = [aws_security_group.storage.id]
}

resource "aws_fsx_lustre_file_system" "this" {
  count                       = var.fsx_gib > 0 ? 1 : 0
  deployment_type             = "PERSISTENT_2"
  file_system_type_version    = "2.15"
  storage_capacity            = var.fsx_gib
  per_unit_storage_throughput = 250
  subnet_ids                  = [aws_subnet.private[var.zones[0]].id]
  security_group_ids          = [aws_security_group.storage.id]
  tags                        = { Name = var.name }
}
