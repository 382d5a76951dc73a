"""What every part of the runtime needs: errors, exit codes, the log, the environment, HTTP, child processes.

Imports nothing from the other folders.
"""
