"""`bireme audit`: what is wrong with manifests of training jobs that others wrote."""
