"""From JSON text to validated values: strict validation, repair, the exported schema, errors for the model."""
