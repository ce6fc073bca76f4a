"""Derive traced functions, backwards: a rule for each primitive, and the walk over the tape that applies them.

A rule is made of public functions, so that it can be derived again. `rules` has the table of all; who derives are
`mw.grad`, `mw.value_and_grad` and `mw.vjp` of the api.
"""
