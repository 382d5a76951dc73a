terraform {
  required_version = ">= 1.9"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.80, < 7"
    }
  }
}

provider "aws" {
  region = var.region
  default_tags {
    tags = merge(var.tags, { "bireme/cluster" = var.name })
  }
}
