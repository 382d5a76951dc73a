"""`bireme adopt` and `export`: values for the job of a manifest that others wrote, and manifests for ours."""
