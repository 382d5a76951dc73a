"""The tests, by tier; ``tests.support`` has what several tiers share."""
