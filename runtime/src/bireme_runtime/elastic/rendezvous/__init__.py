"""Who trains together: members agree on rounds through etcd, in the order of the network."""
