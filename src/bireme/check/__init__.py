"""`bireme check`: checks for authors of charts."""
