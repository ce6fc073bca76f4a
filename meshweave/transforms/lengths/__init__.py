"""Sizes that each call chooses, up to a bound: find them in a program, and keep what lies behind them out of results.

The api imports this; it imports what other transforms do.
"""
