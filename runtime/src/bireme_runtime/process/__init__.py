"""What every process of the runtime needs: exit codes, child processes. Knows no room beside it."""
