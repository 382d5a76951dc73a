"""`bireme adopt`: the values with which a chart runs the job of a manifest that others wrote."""
