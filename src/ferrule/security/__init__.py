"""Analysis of text from outside, without knowledge of any call: secrets and credentials in it, and work budgets."""
