# What the ServiceAccount `data` of the namespace default may do: read the buckets, and copy datasets to them.
resource "aws_iam_role" "data" {
  count              = length(var.buckets) > 0 ? 1 : 0
  name               = "${var.name}-data"
  assume_role_policy = local.trust["pods.eks"]
}

resource "aws_iam_role_policy" "data" {
  count = length(var.buckets) > 0 ? 1 : 0
  name  = "buckets"
  role  = aws_iam_role.data[0].name
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["s3:ListBucket", "s3:GetBucketLocation"]
        Resource = [for bucket in var.buckets : "arn:${data.aws_partition.this.partition}:s3:::${bucket}"]
      },
      {
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        Resource = [for bucket in var.buckets : "arn:${data.aws_partition.this.partition}:s3:::${bucket}/*"]
      },
    ]
  })
}

resource "aws_eks_pod_identity_association" "data" {
  count           = length(var.buckets) > 0 ? 1 : 0
  cluster_name    = aws_eks_cluster.this.name
  namespace       = "default"
  service_account = "data"
  role_arn        = aws_iam_role.data[0].arn
}
