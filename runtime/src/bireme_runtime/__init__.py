"""What runs inside the pods of a Bireme job. Standard library only: it is mounted into images as they are."""

__version__ = "0.1.0"
