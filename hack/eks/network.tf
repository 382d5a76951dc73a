locals {
  # EKS makes it and lets all of its members reach one another. Nodes, file systems and endpoints are in it.
  cluster_group = aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
  endpoints     = ["ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "elasticfilesystem", "fsx", "logs", "monitoring", "sts"]
}

resource "aws_vpc" "this" {
  cidr_block                       = var.cidr
  assign_generated_ipv6_cidr_block = var.ipv6
  enable_dns_hostnames             = true
  tags                             = { Name = var.name }
}

# Without rules, it admits nothing.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id
}

# Nothing but the NAT gateway has a public address.
resource "aws_internet_gateway" "this" {
  count  = var.internet ? 1 : 0
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.name }
}

resource "aws_subnet" "public" {
  for_each          = { for index, zone in var.zones : zone => index if var.internet }
  vpc_id            = aws_vpc.this.id
  availability_zone = each.key
  cidr_block        = cidrsubnet(var.cidr, 8, 240 + each.value)
  tags              = { Name = "${var.name}-public-${each.key}", "kubernetes.io/role/elb" = "1" }
}

resource "aws_subnet" "private" {
  for_each          = { for index, zone in var.zones : zone => index }
  vpc_id            = aws_vpc.this.id
  availability_zone = each.key
  cidr_block        = cidrsubnet(var.cidr, 3, each.value)
  ipv6_cidr_block   = var.ipv6 ? cidrsubnet(aws_vpc.this.ipv6_cidr_block, 8, each.value) : null

  assign_ipv6_address_on_creation = var.ipv6
  tags = {
    Name                              = "${var.name}-private-${each.key}"
    "kubernetes.io/role/internal-elb" = "1"
    "karpenter.sh/discovery"          = var.name
  }
}

resource "aws_eip" "nat" {
  count  = var.internet ? 1 : 0
  domain = "vpc"
  tags   = { Name = var.name }
}

resource "aws_nat_gateway" "this" {
  count         = var.internet ? 1 : 0
  allocation_id = aws_eip.nat[0].id
  subnet_id     = aws_subnet.public[var.zones[0]].id
  tags          = { Name = var.name }
  depends_on    = [aws_internet_gateway.this]
}

# To the internet by IPv6, and never from there.
resource "aws_egress_only_internet_gateway" "this" {
  count  = var.internet && var.ipv6 ? 1 : 0
  vpc_id = aws_vpc.this.id
}

resource "aws_route_table" "public" {
  count  = var.internet ? 1 : 0
  vpc_id = aws_vpc.this.id
  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.this[0].id
  }
}

resource "aws_route_table" "private" {
  vpc_id = aws_vpc.this.id
  dynamic "route" {
    for_each = aws_nat_gateway.this
    content {
      cidr_block     = "0.0.0.0/0"
      nat_gateway_id = route.value.id
    }
  }
  dynamic "route" {
    for_each = aws_egress_only_internet_gateway.this
    content {
      ipv6_cidr_block        = "::/0"
      egress_only_gateway_id = route.value.id
    }
  }
}

resource "aws_route_table_association" "public" {
  for_each       = aws_subnet.public
  subnet_id      = each.value.id
  route_table_id = aws_route_table.public[0].id
}

resource "aws_route_table_association" "private" {
  for_each       = aws_subnet.private
  subnet_id      = each.value.id
  route_table_id = aws_route_table.private.id
}

# Datasets in S3 do not pass the NAT gateway, which costs by the gigabyte.
resource "aws_vpc_endpoint" "s3" {
  vpc_id          = aws_vpc.this.id
  service_name    = "com.amazonaws.${var.region}.s3"
  route_table_ids = [aws_route_table.private.id]
}

# Without internet, nodes, add-ons and jobs reach AWS by these alone.
resource "aws_vpc_endpoint" "service" {
  for_each            = toset(var.internet ? [] : local.endpoints)
  vpc_id              = aws_vpc.this.id
  service_name        = "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = [for zone in var.zones : aws_subnet.private[zone].id]
  security_group_ids  = [local.cluster_group]
}

# EFA needs rules in both directions between its own interfaces.
resource "aws_security_group" "efa" {
  name        = "${var.name}-efa"
  description = "Traffic among nodes with EFA"
  vpc_id      = aws_vpc.this.id
  tags        = { "karpenter.sh/discovery" = var.name }
  ingress {
    description = "among them"
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    self        = true
  }
  egress {
    description = "among them"
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    self        = true
  }
}
