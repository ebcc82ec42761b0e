"""Values that go through a call: frozen, and free of I/O."""
