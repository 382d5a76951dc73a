"""The pytest plugin: fixtures that render, plan, install and observe charts."""
