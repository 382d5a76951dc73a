"""Sources that are reached by HTTP: web servers and S3."""
