"""The plan: which pods a release makes, their ranks, and the nodes that they fit on. It needs no cluster."""
