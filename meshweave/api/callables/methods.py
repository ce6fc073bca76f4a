"""Let a compiled function be a method."""

from __future__ import annotations

from typing import Any

from meshweave.api.callables.waiting import in_a_thread
from meshweave.frontends.python import tree
from meshweave.frontends.python.instances import Receiver


class Method:
    """Be a compiled function that is bound to an object: `model.step(x)` calls `step(model, x)`.

    The arrays among the object's attributes are arguments of the program; all else about it is static, so that what
    changes is seen by the next call. A dataclass, or what is registered with JAX or optree, is taken as such. Other
    attributes are those of the function: `lower`, `explain`, `cache_info`, ..
    """

    def __init__(self, function: Any, instance: object, static: bool = False) -> None:
        """Bind a function of `jit` to an object; static: which is a static argument."""
        self.__wrapped__, self.__self__, self._static = function, instance, static

    def _first(self) -> object:
        value = self.__self__
        whole = not isinstance(value, type) and tree.container(value) is not None
        return value if whole or self._static else Receiver(value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        return self.__wrapped__(self._first(), *args, **kwargs)

    async def call_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in a thread, while other coroutines run; what it returns is what `await` gives."""
        return await in_a_thread(self, args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the function for arguments of this kind, uncompiled."""
        return self.__wrapped__.lower(self._first(), *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Say what a call with such arguments does; without arguments what the last one did."""
        given = (self._first(), *args) if args or kwargs else ()
        said: str = self.__wrapped__.explain(*given, **kwargs)
        return said

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked before there is a function, as by pickle
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __reduce__(self) -> Any:
        return Method, (self.__wrapped__, self.__self__, self._static)

    def __repr__(self) -> str:
        return f"<{self.__wrapped__.__name__} of {self.__self__!r:.60}>"
