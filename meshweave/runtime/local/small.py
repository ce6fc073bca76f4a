"""Call a program of one rank on small arrays: copies in, one foreign call, copies out; nothing is checked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshweave.runtime.local.dispatch import COPIED
from meshweave.runtime.local.engine import LocalCall, LocalExecutable
from meshweave.runtime.memory import Values
from meshweave.runtime.program import buffer


class SmallCall:
    """Call a program of one rank whose arguments and results take less time to copy than to point at."""

    def __init__(self, executable: LocalExecutable) -> None:
        """Allocate the buffers; `applies` must hold."""
        manifest = executable.manifest
        self._inputs = [buffer(port) for port in manifest.inputs]
        self._outputs = [buffer(port) for port in manifest.outputs]
        self._call = LocalCall(executable, [self._inputs], [self._outputs])
        self._execute = executable.execute_here
        self._lock = executable.lock
        self._result: Values = self._outputs[0]

    @staticmethod
    def applies(executable: LocalExecutable) -> bool:
        """Tell whether the program is of one rank, with little to copy."""
        if executable.mesh.nranks > 1:
            return False
        ports = (*executable.manifest.inputs, *executable.manifest.outputs)
        return all(port.nbytes <= COPIED for port in ports)

    def __call__(self, values: Sequence[Any]) -> list[Values]:
        """Run once; return new arrays. values: arrays of the right shapes and dtypes, and numbers.

        Raises RankError when the rank fails.
        """
        with self._lock:
            for target, value in zip(self._inputs, values):
                target[...] = value
            self._execute(self._call)
            return [output.copy() for output in self._outputs]

    def first(self, values: Sequence[Any]) -> Values:
        """Run once; return the first result alone."""
        with self._lock:
            for target, value in zip(self._inputs, values):
                target[...] = value
            self._execute(self._call)
            made: Values = self._result.copy()
            return made

    def of_one(self, value: Any) -> Values:
        """Run a program of one argument once; return the first result alone."""
        with self._lock:
            self._inputs[0][...] = value
            self._execute(self._call)
            made: Values = self._result.copy()
            return made
