"""What a run shows: failures, pauses, status and history."""
