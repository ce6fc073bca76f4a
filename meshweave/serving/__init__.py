"""Serve programs over HTTP.

`work` holds what waits and for whom; `array_service` answers it in a thread of its own, without HTTP. `application`
puts routes before it, `running` starts and stops it. `tools/serve.py` is the command. Only `tools` imports this room.
"""
