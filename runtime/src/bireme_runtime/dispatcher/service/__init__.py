"""A replica of the shard dispatcher. Trainers do without it."""
