"""Say what ranks send each other in an exchange of two layouts: pieces, messages, the words that compiled code reads.

`Table` has the pieces, of one rank at a time; `section.py` and `device.py` write them down for compiled code. Plans
count with them, engines write them when they load a program. It imports `abi`, `device` and `layout`.
"""
