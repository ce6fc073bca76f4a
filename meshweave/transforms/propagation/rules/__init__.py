"""Find what each op does with its dims: `table` numbers the rules, the other files read them off ops."""
