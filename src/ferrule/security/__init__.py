"""Analysis of untrusted input: names, characters, schemas and regular expressions. It knows no call."""
