"""Analysis of input from outside, without knowledge of any call: secrets, names, characters, schemas, patterns."""
