"""`bireme lint`: checks for authors of charts."""
