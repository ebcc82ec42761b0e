"""Values that go through a call: frozen, and free of I/O.

They know nothing of how a call is run: a `ToolContext` asks its call by the protocol `RunningCall` (context.py).
"""
