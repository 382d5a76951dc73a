"""`bireme adopt` turns manifests of others into values. `bireme export` turns our charts into manifests."""
