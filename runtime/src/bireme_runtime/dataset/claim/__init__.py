"""What fills a claim: data from S3, the web and rclone, unpacked, split, published and uploaded."""
