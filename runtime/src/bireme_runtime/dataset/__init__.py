"""Copying a dataset onto a volume claim, and verifying it."""
