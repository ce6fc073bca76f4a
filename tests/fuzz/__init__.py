"""Fuzzing: random cases of each kind from a seed, each failure made small and kept.

    python -m tests.fuzz --seconds 60 --seed 7 --only programs plans

One file for each kind of case; `search.py` draws, shrinks and keeps; `__main__.py` is the command. A kind is a
strategy of Hypothesis, a check that raises when a case goes wrong, and how a case reads as text. Generators of cases
that tests share stay where those tests are (tests/programs.py, tests/strategies.py).
"""
