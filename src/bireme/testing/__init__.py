"""The pytest plugin, for projects that test charts."""
