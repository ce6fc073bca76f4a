"""Hold what ops on scores say, `mw.attention` and `mw.reduced_scores`: for the dialect, passes and the lowering."""
