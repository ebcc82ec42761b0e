"""Waiting in turn: limits, locks, a fair queue, a clock. It knows no call."""
