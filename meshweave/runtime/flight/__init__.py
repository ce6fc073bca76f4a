"""Tell what each rank did last: the status board, records of it, who holds the others up, dumps on disk.

Compiled code writes the board; nothing here needs a rank to answer. Engines, the watchdog and
`meshweave doctor` use it.
"""
