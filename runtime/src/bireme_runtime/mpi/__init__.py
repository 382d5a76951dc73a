"""mpirun across pods: its supervisor and the ssh between them."""
