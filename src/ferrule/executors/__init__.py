"""Where a handler runs."""
