"""Waiting in turn: limits, locks, a clock. It knows no call."""
