"""torchrun with workers that come and go: its supervisor and the rendezvous on etcd."""
