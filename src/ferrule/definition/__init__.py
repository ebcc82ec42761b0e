"""From what a developer wrote to a `Tool`.

A file for each way to write one: function.py, model_class.py, payload.py, mapping.py. Each makes a `Handler`
(handler.py) with its `Parameters`. shapes.py reads the definitions of others. The options of a tool are one table, in
options.py.
"""
