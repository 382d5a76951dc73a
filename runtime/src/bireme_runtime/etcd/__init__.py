"""A client of etcd v3, and a check that one answers."""
