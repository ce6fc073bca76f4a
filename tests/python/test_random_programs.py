"""Random Python programs in any layouts, with nested hints, called again and again: what NumPy says, to the bit."""

from typing import Any

import numpy as np
from depth import examples
from hypothesis import event, given, settings
from python_programs import CALLS, NUMPY, Case, cases
from traced import mw

from meshweave.layout.digits import dim_indices, to_allocation


def laid_out(value: Any, case: Case, layout: str) -> Any:
    """An Array whose padding holds what must never be seen: NaN, or a large number."""
    array = mw.Array.from_numpy(value, mesh=case.mesh, layout=layout)
    shards = []
    for rank, shard in enumerate(array.shards):
        held = [
            dim_indices(array.layout, case.mesh, value.shape, d, rank) for d in range(value.ndim)
        ]
        valid = np.ones([len(i) for i in held], bool)
        for dim, indices in enumerate(held):
            valid &= np.expand_dims(indices >= 0, [d for d in range(value.ndim) if d != dim])
        inside = to_allocation(valid, array.layout, case.mesh, value.shape)
        bad = np.nan if value.dtype.kind == "f" else 1 << 28
        shards.append(np.where(inside, shard, np.array(bad, shard.dtype)))
    return mw.Array.from_shards(shards, mesh=case.mesh, layout=layout, shape=value.shape)


@settings(max_examples=examples(40))
@given(cases())
def test_a_program_gives_what_numpy_gives_call_after_call(case):
    f = mw.jit(
        case.function(mw),
        mesh=case.mesh,
        in_layouts=tuple(case.given),
        out_layouts=tuple(case.wanted),
    )
    event("hints" if "m.hint" in case.text else "no hints")
    calls = []
    for call in (*range(CALLS), 0):
        inputs = [values[call] for values in case.values[: case.inputs]]
        right = [np.array(y) for y in case.function(NUMPY)(*inputs)]
        calls.append((f(*[x.copy() for x in inputs]), right))
        arrays = [laid_out(x, case, layout) for x, layout in zip(inputs, case.given)]
        calls.append((f(*arrays), right))
    for results, right in calls:  # after all calls: none has written into the results of another
        for y, wanted in zip(results, right, strict=True):
            np.testing.assert_array_equal(np.asarray(y), wanted, case.text)
            assert np.asarray(y).dtype == wanted.dtype, case.text
    f.close()
