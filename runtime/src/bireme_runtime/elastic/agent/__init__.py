"""One worker pod: its supervisor, torchrun's agent, and what both do around a round."""
