"""Turn device code into PTX and cubins: libdevice, LLVM, ptxas, and the store of what they made.

Imported by the gpu target alone.
"""
