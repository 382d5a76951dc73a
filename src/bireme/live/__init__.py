"""A release on a cluster: install, watch, explain and remove it."""
