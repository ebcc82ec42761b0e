"""From JSON text to validated values: strict validation, repair, the exported schema, errors for the model.

Begin at parameters.py: `Parameters` is what a tool takes. Those of Python's types are in typed_parameters.py, those of
a JSON Schema in schema_parameters.py.
"""
