"""Show what a program does and why, and hold it to that: reasons of collectives, budgets, traces, pages.

It reads reports, plans and modules, and listens to the runtime; only the faces (`api`, `tools`) import it.
"""
