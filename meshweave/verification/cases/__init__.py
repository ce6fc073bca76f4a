"""Compare values case by case, where ranges of places decide how each is put together: the last that a check asks.

What belongs here: cuts of ranges, and the form that a term has between them. It imports `terms`; `check` imports it.
"""
