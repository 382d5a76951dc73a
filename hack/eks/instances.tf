# The facts of instance types and prices are those of the charts: nothing here repeats them.
locals {
  instances = { for type in keys(var.nodes) : type => yamldecode(file("${path.module}/../../values/instances/${type}.yaml")).instance }
  prices    = yamldecode(file("${path.module}/../../values/prices.yaml"))

  # The first network card of these has no EFA, so that they have a card more than EFA interfaces.
  plain_first_card = ["p6-b300.48xlarge"]

  # Families with GPUs and Arm processors, as in src/bireme/plan/instances.py.
  arm_families = ["g5g", "p6e-gb200"]

  huge_pages = 5120 / 2

  groups = {
    for type, instance in local.instances : replace(type, ".", "-") => {
      type        = type
      count       = var.nodes[type]
      resource    = instance.accelerator.resource
      ami         = instance.accelerator.resource == "aws.amazon.com/neuron" ? "neuron" : contains(local.arm_families, split(".", type)[0]) ? "arm" : "nvidia"
      efa         = instance.efa
      nvme        = instance.nvmeGB > 0
      kind        = try(var.capacity[type].kind, "on-demand")
      reservation = try(var.capacity[type].reservation, null)
      cards       = instance.efa + (contains(local.plain_first_card, type) ? 1 : 0)
    }
  }
}
