"""Limits, locks and the clock. This room knows nothing of calls."""
