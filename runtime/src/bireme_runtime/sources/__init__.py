"""Where data comes from: folders, web servers and S3."""
