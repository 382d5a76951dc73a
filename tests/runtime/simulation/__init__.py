"""A deterministic simulation of the rendezvous: real protocol code, with another clock, network and etcd."""
