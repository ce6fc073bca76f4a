"""Say of how many elements of a row a few are found without its being sorted. It loads no MLIR."""

FEW = 8
"""Elements of a row for each one that is wanted in order, from which on ranks look for their own first, and all gather
what they have found. Else rows are sorted, of which ranks may have parts."""
