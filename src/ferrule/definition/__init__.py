"""Make a `Tool` of a developer's definition.

function.py and model_class.py make a `Handler` (handler.py) with its `Parameters`. forms.py calls `ferrule.adapters`
for every other form. options.py has the options of a tool in one table.
"""
