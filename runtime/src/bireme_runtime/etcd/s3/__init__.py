"""What etcd's own pods run besides when their snapshots go to S3."""
