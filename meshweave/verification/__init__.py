"""Check the program of one rank against the whole program, apart from the passes that made it.

What belongs here: what a program means, as terms over whole tensors; nothing of how programs are transformed or
planned. It imports dialects, `ir` and `layout`. The pass `dist-verify` and the faces import it. Its room `buffers`
checks the program again once its tensors are buffers; the lowering runs that by default.
"""
