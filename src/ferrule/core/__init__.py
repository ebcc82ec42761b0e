"""Ring 0: values, schemas and the compiled plan of one tool. It may await; it starts nothing on its own."""
