"""Serve programs over HTTP: arrays for any compiled program, text for a model that decodes token by token.

`work` holds what waits and for whom; `array_service` and `slot_service` answer it, each in a thread of its own, without
HTTP. `application` puts routes before one of them, `running` starts and stops it. `tools/serve.py` is the command. Only
`tools` imports this room.
"""
