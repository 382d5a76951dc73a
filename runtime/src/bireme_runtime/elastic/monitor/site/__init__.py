"""A folder that the supervisor puts on the PYTHONPATH of the training processes, for sitecustomize.py."""
