"""From JSON text to validated values: strict validation, repairs, the exported JSON Schema, and errors for the model.

Start at parameters.py. `TypedParameters` validates with Pydantic, `SchemaParameters` with a JSON Schema.
"""
