variable "name" {
  description = "Name of the cluster, and of what belongs to it"
  type        = string
  default     = "bireme"
}

variable "region" {
  description = "Region"
  type        = string
  default     = "us-west-2"
}

variable "zones" {
  description = "At least two zones; accelerated nodes and FSx are in the first"
  type        = list(string)
  default     = ["us-west-2a", "us-west-2b"]
  validation {
    condition     = length(distinct(var.zones)) >= 2 && alltrue([for zone in var.zones : startswith(zone, var.region)])
    error_message = "zones: name at least two zones of the region."
  }
}

variable "kubernetes" {
  description = "Version of Kubernetes"
  type        = string
  default     = "1.35"
}

variable "nodes" {
  description = "Number of accelerated nodes by type, e.g. {\"p4d.24xlarge\" = 3}; types as in values/instances"
  type        = map(number)
  default     = {}
  validation {
    condition     = alltrue([for type in keys(var.nodes) : fileexists("${path.module}/../../values/instances/${type}.yaml")])
    error_message = "nodes: values/instances has no file for one of the types."
  }
}

variable "cpu_nodes" {
  description = "Number of m7i.2xlarge for etcd and operators"
  type        = number
  default     = 2
}

variable "capacity" {
  description = "How accelerated nodes are bought, by type: on-demand (default), spot, or reservation or block with the id of either"
  type        = map(object({ kind = string, reservation = optional(string) }))
  default     = {}
  validation {
    condition = alltrue([for each in values(var.capacity) :
      contains(["on-demand", "spot"], each.kind) ? each.reservation == null :
      contains(["reservation", "block"], each.kind) && can(regex("^cr-[0-9a-z]+$", each.reservation))
    ])
    error_message = "capacity: kind is on-demand, spot, reservation or block; the last two, and only they, need reservation = \"cr-…\"."
  }
}

variable "placement_groups" {
  description = "Placement groups that exist, by type: that of a reservation, say"
  type        = map(string)
  default     = {}
}

variable "os" {
  description = "Operating system of the nodes: al2023 or bottlerocket"
  type        = string
  default     = "al2023"
  validation {
    condition     = contains(["al2023", "bottlerocket"], var.os)
    error_message = "os: al2023 or bottlerocket."
  }
}

variable "admitted" {
  description = "Networks that may reach the API server from outside the VPC; none by default"
  type        = list(string)
  default     = []
}

variable "administrators" {
  description = "ARNs of further IAM roles and users with all rights in the cluster"
  type        = list(string)
  default     = []
}

variable "cidr" {
  description = "Addresses of the VPC, a /16"
  type        = string
  default     = "10.0.0.0/16"
}

variable "internet" {
  description = "Nodes reach the internet by a NAT gateway; false gives them VPC endpoints of AWS's services instead"
  type        = bool
  default     = true
}

variable "ipv6" {
  description = "Pods and Services have IPv6 addresses, which never changes afterwards"
  type        = bool
  default     = false
  validation {
    condition     = !var.ipv6 || (var.fsx_gib == 0 && !anytrue([for type in keys(var.nodes) : startswith(type, "p3.")]))
    error_message = "ipv6: EKS has no FSx for Lustre and no p3.2xlarge, p3.8xlarge and p3.16xlarge in such a cluster."
  }
}

variable "karpenter" {
  description = "A role and a queue for Karpenter's controller, the ServiceAccount karpenter of kube-system"
  type        = bool
  default     = false
  validation {
    condition     = var.internet || !var.karpenter
    error_message = "karpenter: it asks IAM, for which a VPC has no endpoint: leave internet on."
  }
}

variable "efs" {
  description = "Make an EFS file system"
  type        = bool
  default     = true
}

variable "fsx_gib" {
  description = "Size of the FSx for Lustre file system in GiB (1200, 2400, 4800, …); 0 makes none"
  type        = number
  default     = 0
  validation {
    condition     = var.fsx_gib == 0 || var.fsx_gib == 1200 || (var.fsx_gib > 0 && var.fsx_gib % 2400 == 0)
    error_message = "fsx_gib: 0, 1200 or a multiple of 2400."
  }
}

variable "buckets" {
  description = "S3 buckets that datasets are copied from and to: the ServiceAccount data of the namespace default may read and write them"
  type        = list(string)
  default     = []
}

variable "cloudwatch" {
  description = "Install the add-on for CloudWatch observability"
  type        = bool
  default     = false
}

variable "gpu_metrics" {
  description = "A role for the CloudWatch agent of charts/gpu-metrics, and a dashboard"
  type        = bool
  default     = false
}

variable "expires" {
  description = "When all node groups are set to no nodes, e.g. 2026-12-01T18:00:00Z; never by default"
  type        = string
  default     = null
  validation {
    condition     = var.expires == null || can(timecmp(var.expires, var.expires))
    error_message = "expires: a time like 2026-12-01T18:00:00Z."
  }
}

variable "tags" {
  description = "Tags of everything that is made"
  type        = map(string)
  default     = {}
}
