"""Waiting in turn: limits, locks, a fair queue, a timer, a clock. It knows no call."""
