"""What runs beside an etcd server, in etcd's own pods: joining, users, snapshots."""
