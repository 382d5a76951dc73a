"""PaddlePaddle's roles, their supervisor, and what a training script asks about its job."""
