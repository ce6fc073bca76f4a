"""Hold global tensors: one allocation per rank of a mesh, a layout, the global shape."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from operator import index as as_index
from typing import Any, SupportsIndex, cast

import numpy as np

from meshweave.bundle import NUMPY_DTYPES, OF_ML_DTYPES, Manifest, Port, element_name, numpy_dtype
from meshweave.errors import MeshweaveError, UsageError
from meshweave.layout import Layout, Mesh, gather
from meshweave.layout.arguments import as_layout
from meshweave.layout.digits import part_shape, scatter, scatter_to, with_padding, without_padding
from meshweave.layout.spec import LayoutLike
from meshweave.runtime.arrays import text
from meshweave.runtime.arrays.away import AwayShards
from meshweave.runtime.arrays.blocks import views
from meshweave.runtime.arrays.dlpack import HasDLPack, capsule_of, unknown_to_numpy
from meshweave.runtime.arrays.einops import tell_einops
from meshweave.runtime.arrays.elements import narrow, stored, wide
from meshweave.runtime.arrays.kind import Kind, kind_of
from meshweave.runtime.arrays.operators import Operators
from meshweave.runtime.arrays.saving import save, save_part
from meshweave.runtime.engine import Executable
from meshweave.runtime.job.current import check_same, own_rank, ranks_here
from meshweave.runtime.memory import Values, aligned_array
from meshweave.runtime.program import check_shape, usable

_BF16 = "bf16"


class Array(Operators):
    """Hold a global tensor that is laid out over the ranks of a mesh.

    shards: what each rank holds, one NumPy array per rank, of `layout.allocation_shape(mesh, shape)`, which is the
            local shape unless the layout has a memory order of its own. Padding is undefined. In a job (`mw.init`) an
            Array of a mesh of several ranks holds the own part alone, `local()`.
    mesh:   the ranks. layout: where the elements lie on them. shape: the global shape.
    dtype:  of the elements, as "f32", "bf16" (shards hold the bits as uint16), "i1" (bool), ... The attribute `dtype`
            is NumPy's, `dtype_name` is this name.

    It is an array of the array API standard: operators, indexing, methods and the functions of `mw` compute with it at
    once, on the ranks that hold it, and give Arrays. `np.asarray(a)`, `float(a)` and DLPack take its value. Made by
    `mw.asarray`, `from_numpy`, `from_shards`, `from_dlpack`, by `meshweave.load` and by compiled programs. Raises
    MeshweaveError naming the rank and dim of a shard that does not fit, LayoutError for a layout that does not fit the
    shape or the mesh.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> mw.Array.from_numpy(np.zeros((4, 6), np.float32), mesh="x=2", layout="[_, x]")
    Array([[0., 0., 0., 0., 0., 0.],
           [0., 0., 0., 0., 0., 0.],
           [0., 0., 0., 0., 0., 0.],
           [0., 0., 0., 0., 0., 0.]],
          4x6xf32 [_, x] on (x=2): rank 0 [:, 0:3], rank 1 [:, 3:6])
    """

    # What each array has lies in slots, which halves the time to make one.
    __slots__ = ("__dict__", "__weakref__", "_alone", "_held", "kind")

    kind: Kind
    _held: tuple[Values, ...] | None  # None: not here, or donated
    _alone: bool  # whether nothing else is known to hold this memory
    _away: AwayShards | None = (
        None  # the same shards elsewhere, and those in this process that they are equal to
    )
    _equal: tuple[Values, ...] | None = None
    weak_type: bool = False
    """Whether JAX lets the array take the dtype of what it meets, as a Python number does."""

    def __init__(
        self, shards: Sequence[Values], mesh: Mesh, layout: Layout, shape: Sequence[int], dtype: str,
        rank: int | None = None,
    ) -> None:  # fmt: skip
        """Check every shard. Raises MeshweaveError, which names the rank and the dim that do not fit.

        rank: the one of a job whose shard alone is given; None: those of all ranks are.
        """
        layout.check(mesh, shape)
        layout.check_owned()
        self.kind = kind_of(mesh, layout, tuple(shape), dtype, rank)
        self._held, self._alone = tuple(shards), False
        if len(self.here) != self.kind.nparts:
            who = f"the mesh ({mesh}) has {mesh.nranks}" if rank is None else f"rank {rank} has one"
            raise MeshweaveError(f"{len(self.here)} shards, {who}")
        local = layout.allocation_shape(mesh, self.shape)
        for whose, shard in enumerate(self.here, rank or 0):
            if shard.dtype != numpy_dtype(dtype):
                raise MeshweaveError(
                    f"rank {whose}: a shard of dtype {shard.dtype}, {numpy_dtype(dtype)} is right"
                )
            check_shape(f"the shard of rank {whose}", shard.shape, local)

    def holding(self, shards: Iterable[Values]) -> Array:
        """Return an Array like this one with other shards, of its own and known to fit: nothing is checked."""
        made = object.__new__(Array)
        made._held, made.kind, made._alone = tuple(shards), self.kind, True
        return made

    @staticmethod
    def elsewhere(away: AwayShards, kind: Kind) -> Array:
        """Return an Array whose shards are in other memory, and come here when somebody looks at them.

        away: where they are. kind: the mesh, layout, shape and dtype of the Array.
        """
        made = object.__new__(Array)
        made._held, made.kind, made._alone, made._away = None, kind, True, away
        return made

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is pickled and copied, the shards wherever they lie: what is in no slot, and what is."""
        held = None if self.is_donated else self.here
        rest = {k: v for k, v in vars(self).items() if k not in ("_away", "_equal")}
        return rest, {"_held": held, "kind": self.kind, "_alone": self._alone}

    @property
    def away(self) -> AwayShards | None:
        """Return the shards elsewhere; None where there are none, or those here may have changed since."""
        if self._held is None or (self._alone and self._equal is self._held):
            return self._away
        return None

    def also_in(self, away: AwayShards) -> None:
        """Note that the shards are in other memory too; what is here must be known to nobody else.

        away: where they are.
        """
        self._away, self._equal = away, self.here

    @property
    def shards(self) -> tuple[Values, ...]:
        """Return what each rank holds. Raises UsageError for an array that was donated.

        Who has these arrays may keep them: a later donation then copies the array first.
        """
        self._alone = False
        return self.held

    @property
    def held(self) -> tuple[Values, ...]:
        """Return the shards of all ranks, for who keeps none of them. Raises UsageError where they are elsewhere."""
        shards, rank = self._held, self.kind.rank
        if shards is not None and rank is None:
            return shards
        if rank is not None:
            raise UsageError(
                f"{self._kind()}: the parts of other ranks are in other processes, this one is rank {self.kind.rank}: "
                f'a.local() is its part, mw.redistribute(a, "{Layout.replicated(len(self.shape))}") '
                "gives all of them the whole"
            )
        return self.here

    @property
    def here(self) -> tuple[Values, ...]:
        """Return the shards that are in this process: of all ranks, or of the own one in a job."""
        if self._held is None:
            self.check_usable()
            assert self._away is not None
            self._held = self._equal = self._away.fetched()
        return self._held

    def local(self, rank: int | None = None) -> Values:
        """Return what a rank holds, without padding, in the order of the dims: a view of its shard where one is.

        rank: by default this process's, in a job (`mw.init`), or the only one. bf16 comes as f32, which holds it. Of a
        layout with a pending reduction it is the rank's summand. Raises UsageError for a rank that is elsewhere.

        >>> import numpy as np
        >>> import meshweave as mw
        >>> a = mw.Array.from_numpy(np.arange(5), mesh="x=3", layout="[x]")
        >>> [a.local(rank).tolist() for rank in range(3)]
        [[0, 1], [2, 3], [4]]
        """
        own, count = self.kind.rank, self.mesh.nranks
        if rank is None and own is None and count > 1:
            raise UsageError(f"{self._kind()}: this process has the parts of all ranks: say which")
        rank = (own or 0) if rank is None else rank
        if not 0 <= rank < count or own not in (None, rank):
            right = f"0 to {count - 1}" if own is None else str(own)
            raise UsageError(f"{self._kind()}: no part of rank {rank} is here: {right} is right")
        self._alone = False
        shard = self.here[0 if own is not None else rank]
        part = without_padding(shard, self.mesh, self.layout, self.shape, rank)
        return wide(part, self.dtype_name) if self.dtype_name == _BF16 else part

    def check_usable(self) -> None:
        """Raise UsageError for an array that was donated."""
        if self.is_donated:
            raise UsageError(
                f"{self._kind()}: this Array was donated to a call, and its buffer is a result's now: use that result"
            )

    def copy(self) -> Array:
        """Return an Array like this one in memory of its own."""
        return self.holding([copied(shard) for shard in self.here])

    __copy__ = copy

    def alone(self) -> Array:
        """Note that nothing else holds the memory of this array, and return it."""
        self._alone = True
        return self

    @property
    def is_alone(self) -> bool:
        """Tell whether nothing else is known to hold the memory of this array."""
        return self._alone

    def moved_to(self, shards: Iterable[Values]) -> None:
        """Let the array lie in other memory, which holds the same."""
        self._held, self._away = tuple(shards), None

    @property
    def is_donated(self) -> bool:
        """Tell whether the array was donated: another one has its buffer, and it has no value any more."""
        return self._held is None and self._away is None

    def given_up(self, fits: bool = False) -> tuple[Values, ...]:
        """Give the shards to a call that writes them: the array cannot be used any more.

        They are copied first where something else may hold their memory, or where compiled code cannot work in it.
        fits: it is known that code can.
        """
        shards = self.here
        if not (self._alone and (fits or all(map(usable, shards)))):
            shards = tuple(map(copied, shards))
        self._held = self._away = None
        return shards

    def in_place(self) -> Values | None:
        """Return the only shard of an array that one rank has the whole of, for who writes to it.

        None where something else may hold its memory.
        """
        (shard,) = self.here
        if not (self._alone and shard.flags.writeable):
            return None
        if self._away is not None:
            self._away = self._equal = None
        return shard

    def given_away(self) -> AwayShards | None:
        """Give what is elsewhere, as `away` does, to a call that writes it: the array cannot be used any more."""
        self.check_usable()
        found = self.away
        self._held = self._away = None
        return found

    def become(self, other: Array) -> None:
        """Take the value of the Array `other`, of this shape and dtype: what assignment to elements does.

        Raises UsageError where `other` is what a traced function has made: it has no value yet.
        """
        if not isinstance(other, Array):
            raise UsageError(
                "x += y: an Array from outside does not change in a traced function: give it in, or write x = x + y"
            )
        other.check_usable()
        self._held, self.kind, self._alone = other._held, other.kind, other._alone
        self._away, self._equal = other._away, other._equal

    @property
    def mesh(self) -> Mesh:
        """Return the mesh."""
        return self.kind.mesh

    @property
    def layout(self) -> Layout:
        """Return where the elements lie on the ranks."""
        return self.kind.layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the global shape."""
        return self.kind.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype as NumPy has it; of bf16 that of the package ml_dtypes."""
        return self.kind.dtype

    @property
    def dtype_name(self) -> str:
        """Return the short name of the dtype, as in IR: "f32"."""
        return self.kind.element

    @staticmethod
    def from_numpy(value: object, *, mesh: Mesh | str, layout: object, dtype: Any = None) -> Array:
        """Lay a global array out.

        value:  anything that NumPy takes. mesh: a Mesh or its text. layout: text, a Layout, or a PartitionSpec.
        dtype:  of its elements ("f32", `mw.float32`, `np.float32`, ...); by default the array's own.
        In a job (`mw.init`) every rank makes this call, with the same array: they compare it by a checksum. In a
        partial layout the first rank of each group holds the value, the others the neutral element (avg: all hold the
        value). NumPy has no bf16: it is taken from f32 (rounded to nearest even) or from 16-bit patterns. Raises
        MeshweaveError where any other conversion would be needed.

        >>> import numpy as np
        >>> import meshweave as mw
        >>> a = mw.Array.from_numpy(np.arange(6), mesh="x=4", layout="[x]")
        >>> [shard.tolist() for shard in a.shards][:3], a.numpy().tolist()
        ([[0, 1], [2, 3], [4, 5]], [0, 1, 2, 3, 4, 5])
        """
        array, on = as_numpy(value, "from_numpy"), as_mesh(mesh)
        check_same(on, {"the array": array}, "from_numpy")
        return laid_out_whole(array, on, layout, dtype)

    @staticmethod
    def from_shards(
        shards: Sequence[Any],
        *,
        mesh: Mesh | str,
        layout: object,
        shape: Sequence[int],
        dtype: Any = None,
    ) -> Array:
        """Make the tensor of global `shape` whose rank r holds `shards[r]` in memory.

        shards: of `layout.allocation_shape(mesh, shape)` each, as many as the mesh has ranks.
        mesh:   a Mesh or its text. layout: text, a Layout, or a PartitionSpec.
        dtype:  of the elements; by default that of the shards. bf16 comes as 16-bit patterns or as f32. The arrays are
        not copied where they can be kept: they may be of any library that knows DLPack or `__array__`. Raises
        MeshweaveError naming the rank and dim that do not fit.

        >>> import numpy as np
        >>> import meshweave as mw
        >>> a = mw.Array.from_shards([np.zeros(2), np.ones(2)], mesh="x=2", layout="[x]", shape=(4,))
        >>> a.numpy().tolist()
        [0.0, 0.0, 1.0, 1.0]
        """
        arrays = [as_numpy(shard, f"rank {rank}") for rank, shard in enumerate(shards)]
        if dtype is None and not arrays:
            raise MeshweaveError("no shards, and no dtype either")
        sizes, wanted, kept = as_shape("from_shards", shape), dtype, []
        for rank, array in enumerate(arrays):
            try:
                wanted = dtype_name(array) if wanted is None else as_dtype_name(wanted)
                kept.append(stored(array, wanted))
            except MeshweaveError as error:
                raise MeshweaveError(f"rank {rank}: {error.message}") from None
        on, laid = as_mesh(mesh), as_layout(layout, len(sizes))
        own = own_rank(on)
        if own is not None and len(kept) == on.nranks:
            return Array([kept[own]], on, laid, sizes, as_dtype_name(wanted), own)
        return Array(kept, on, laid, sizes, as_dtype_name(wanted))

    @staticmethod
    def from_local(
        part: object, *, mesh: Mesh | str, layout: object, shape: Sequence[int], dtype: Any = None
    ) -> Array:
        """Make the tensor of global `shape` of which this rank of a job (`mw.init`) holds `part`: nothing is sent.

        part:   what `local()` of the result is: without padding, of any library that knows DLPack or `__array__`. It is
                not copied where it can be kept. For a pending reduction it is the summand of this rank.
        mesh:   of as many ranks as the job has, or of one. layout: text, a Layout, or a PartitionSpec.
        dtype:  of the elements; by default that of the part. bf16 comes as 16-bit patterns or as f32.
        Raises MeshweaveError naming the rank and dim that do not fit.

        >>> import numpy as np
        >>> import meshweave as mw
        >>> mw.Array.from_local(np.ones(2), mesh="x=1", layout="[x]", shape=(2,)).numpy().tolist()
        [1.0, 1.0]
        """
        sizes, on = as_shape("from_local", shape), as_mesh(mesh)
        laid, rank = as_layout(layout, len(sizes)), own_rank(on)
        if rank is None and on.nranks > 1:
            raise UsageError(
                f"from_local: all ranks of ({on}) are in this process: from_shards takes the parts of all, and after "
                "mw.init() under a launcher each process is one rank"
            )
        laid.check(on, sizes)
        who = f"from_local: the part of rank {rank or 0}"
        array = as_numpy(part, who)
        check_shape(who, array.shape, part_shape(on, laid, sizes, rank or 0))
        wanted = dtype_name(array) if dtype is None else as_dtype_name(dtype)
        kept = stored(array, wanted)
        if kept.shape != laid.allocation_shape(on, sizes) or laid.order is not None:
            kept = with_padding(kept, on, laid, sizes, rank or 0, aligned_array)
        return Array([kept], on, laid, sizes, wanted, rank)

    @staticmethod
    def from_dlpack(value: HasDLPack, *, mesh: Mesh | str = "", layout: object = None) -> Array:
        """Lay a global array of another library out.

        value:  of NumPy, PyTorch, JAX, ...: anything with `__dlpack__`, in the processor's memory.
        mesh:   by default one rank. layout: by default each rank holds the whole. With both defaults the Array keeps
                the memory of `value`; otherwise it is copied.
        Raises MeshweaveError for an array that cannot be taken, UsageError for a value that is no array.
        """
        if not hasattr(value, "__dlpack__"):
            raise UsageError(f"from_dlpack: a {type(value).__name__} has no __dlpack__")
        array, on = as_numpy(value, "from_dlpack"), as_mesh(mesh)
        if layout is None:
            layout = Layout.replicated(array.ndim)
            if on.nranks == 1:
                return Array.from_shards([array], mesh=on, layout=layout, shape=array.shape)
        return Array.from_numpy(array, mesh=on, layout=layout)

    @staticmethod
    def from_file(
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        mesh: Mesh | str = "",
        layout: object = None,
    ) -> Array:
        """Read a tensor of a file; for each rank its own part, and nothing beside it.

        path:   of a safetensors, .npy, .npz (not compressed) or GGUF file, of a checkpoint of `torch.save`, or of a
                folder with a checkpoint in several safetensors files.
        name:   of the tensor, where the file has several.
        mesh:   by default one rank. layout: by default each rank holds the whole.
        Blocks of a GGUF file (Q8_0, Q4_0) come as f32. Raises MeshweaveError, which names the file, for what is no such
        file or is damaged, LayoutError for a layout that does not fit.

        >>> import tempfile
        >>> import numpy as np
        >>> import meshweave as mw
        >>> with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        ...     np.save(file.name, np.arange(6.0))
        ...     a = mw.Array.from_file(file.name, mesh="x=2", layout="[x]")
        >>> [shard.tolist() for shard in a.shards]
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        """
        from meshweave.runtime.weights.formats import as_path
        from meshweave.runtime.weights.loading import read_tensor

        place, on = as_path("from_file", path), as_mesh(mesh)
        rank = own_rank(on)
        shards, laid, stored = read_tensor(place, name, on, layout, ranks_here(on))
        return Array(shards, on, laid, stored.shape, stored.dtype, rank)

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Give the value to another library: without a copy from one rank, as a copy when several ranks hold it.

        bf16 goes as bf16, floats of 8 bits as such. Raises BufferError when no rank holds the whole (`shards[r]` is
        what a rank holds).
        """
        shard = self._whole() if self.kind.rank is None else self._of_all()
        if self.mesh.nranks > 1:
            if copy is False:
                raise BufferError(
                    f"{self._kind()}: several ranks hold it: only a copy can be given"
                )
            copy = True
        if stream is not None or dl_device not in (None, (1, 0)):
            raise BufferError("an Array lies in the processor's memory, and has no stream")
        given = shard.copy() if copy else shard
        return capsule_of(given, self.dtype_name)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Name the processor's memory."""
        return (1, 0)

    def _of_all(self) -> Values:
        """Return the own part of a job, which is the value. Raises BufferError when it is not."""
        if not self.kind.is_everywhere or self.layout.order is not None:
            whole = Layout.replicated(len(self.shape))
            raise BufferError(
                f"{self._kind()}: rank {self.kind.rank} does not hold the whole: redistribute it to {whole}, "
                "or take local()"
            )
        return self.here[0]

    def _whole(self) -> Values:
        """Return the first rank's shard, which is the value in NumPy's order. Raises BufferError when it is not."""
        if not self.kind.is_whole:
            whole = Layout.replicated(len(self.shape))
            raise BufferError(
                f"{self._kind()}: rank 0 does not hold the whole in order: redistribute it to {whole}, "
                "or take shards[r]"
            )
        return self.shards[0]

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the array to a new folder, a file per rank and a manifest, all of it or nothing.

        `meshweave.load` reads it.

        In a job (`mw.init`) every rank makes this call, and writes its own file: to a folder that all of them see.

        folder: its path. overwrite: a saved array that is there already is replaced. Raises
        MeshweaveError when it cannot be written.
        """
        about = {
            "mesh": str(self.mesh),
            "layout": str(self.layout),
            "shape": list(self.shape),
            "dtype": self.dtype_name,
        }
        if self.kind.rank is None:
            save(folder, self.shards, about, overwrite)
        else:
            save_part(folder, self.kind.rank, self.here[0], about, overwrite)

    def redistribute(
        self, layout: LayoutLike, engine: str = "local", *, mesh: Mesh | str | None = None
    ) -> Array:
        """Return the same global value in another layout, moved by `engine`, on this mesh or another one.

        See `meshweave.redistribute`.
        """
        import meshweave  # planning and compiling are loaded when they are asked for

        moved: Array = meshweave.redistribute(self, layout, engine=engine, mesh=mesh)
        return moved

    def numpy(self) -> Values:
        """Return the global value with pending reductions done; bf16 as f32, which holds it exactly.

        In a job (`mw.init`) every rank has to hold the whole: nothing is sent. Raises UsageError where parts are
        elsewhere.
        """
        if self.kind.rank is not None and self.kind.is_everywhere:
            return np.array(self.local())
        shards = [wide(shard, self.dtype_name) for shard in self.held]
        if self.kind.is_plain:
            return copied(shards[0])
        return gather(shards, self.mesh, self.layout, self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Values:
        if copy is False:
            value = self.shards[0]
            alone = self.mesh.nranks == 1 and self.dtype_name != _BF16 and self.kind.is_whole
            if not alone or dtype not in (None, value.dtype):
                raise ValueError(
                    f"{self._kind()}: a copy is needed to put it together as {dtype or 'NumPy has it'}"
                )
            return value
        value = self.numpy()
        return value if dtype is None else value.astype(dtype, copy=False)

    def __arrow_array__(self, type: Any = None) -> Any:
        """Give the value to Arrow: pyarrow.array takes a vector so, in this dtype (bf16 as f32) or in `type`."""
        return import_module("pyarrow").array(self.numpy(), type)

    def __jax_array__(self) -> Any:
        """Give the value to JAX, in this dtype: jax.numpy takes the array so."""
        value = self.numpy().astype(self.dtype, copy=False)
        return import_module("jax.numpy").asarray(value)

    def __repr__(self) -> str:
        """Show the values, of a large array those at the edges, and what the first ranks hold."""
        return (
            f"Array({self._kind()}: donated)"
            if self.is_donated
            else text.described(self.kind, self.held)
            if self.kind.rank is None
            else text.part(self.kind, self.local())
        )

    def __str__(self) -> str:
        """Show the values alone, as NumPy does; in a job those of the own part."""
        if self.kind.rank is not None:
            return str(self.local())
        return text.values(self.kind, self.held)

    def _kind(self) -> str:
        return str(self.kind)

    def _repr_html_(self) -> str:
        """Draw the values, and what each rank holds, for notebooks."""
        if self.kind.rank is not None:
            return text.part_html(self.kind, self.local())
        return text.html(self.kind, self.held)


def as_mesh(mesh: Mesh | str) -> Mesh:
    """Return the mesh that an argument means. Raises UsageError when it is none."""
    if isinstance(mesh, str):
        return Mesh.parse(mesh)
    if not isinstance(mesh, Mesh):
        raise UsageError(f"mesh: text or a Mesh is needed, got {type(mesh).__name__}")
    return mesh


def as_shape(who: str, shape: Iterable[SupportsIndex]) -> tuple[int, ...]:
    """Return a global shape. Raises UsageError, prefixed with `who`, when it is none."""
    try:
        return tuple(as_index(size) for size in shape)
    except TypeError:
        raise UsageError(f"{who}: shape {shape!r:.40}, integers are right") from None


def as_dtype_name(dtype: Any) -> str:
    """Return our name of a dtype, "f32" for "f32", `mw.float32`, "float32" and `np.float32`.

    Raises UsageError for other values.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name in NUMPY_DTYPES:
        return str(name)
    try:
        return OF_ML_DTYPES.get(str(name)) or dtype_name(np.empty(0, dtype))
    except (TypeError, MeshweaveError):
        known = ", ".join(NUMPY_DTYPES)
        raise UsageError(f"dtype {dtype!r:.40}: known are {known}, and NumPy's") from None


def as_numpy(value: object, who: str) -> Values:
    """Return an array of any library as NumPy's, by DLPack or `__array__`; without a copy where possible.

    Raises MeshweaveError, prefixed with `who`, for a value that is no array, or one in the memory of another device.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise MeshweaveError(f"{who}: a masked array: give its data and its mask as two arrays")
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, AttributeError):
            found = unknown_to_numpy(cast("HasDLPack", value))  # bf16, say
            if found is not None:
                return found
    try:
        array = np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise MeshweaveError(f"{who}: {type(value).__name__}: {error}") from None
    if array.dtype == object:
        raise MeshweaveError(f"{who}: a {type(value).__name__} is no array of numbers")
    return array


def dtype_name(array: Values) -> str:
    """Return our name of an array's dtype. Raises MeshweaveError when it has none."""
    name = element_name(array.dtype)
    if name is not None:
        return name
    native = array.dtype.newbyteorder("=")
    if not array.dtype.isnative and native.kind in "biufc":
        raise MeshweaveError(
            f"dtype {array.dtype}: bytes in another machine's order; astype({str(native)!r}) is right"
        )
    raise MeshweaveError(f"arrays of dtype {array.dtype} cannot be laid out")


def place(executable: Executable, values: Sequence[Any]) -> list[list[Values]]:
    """Return global arrays, or Arrays of the right layout, as the inputs `[rank][index]` of a program.

    Raises MeshweaveError that names the argument and what is wrong with its dtype, shape or layout.
    """
    manifest, arrays = executable.manifest, laid_out(executable, values)
    columns = [a.given_up() if k in manifest.donated else a.held for k, a in enumerate(arrays)]
    nranks = Mesh.parse(manifest.mesh).nranks
    return [[column[rank] for column in columns] for rank in range(nranks)]


def run_arrays(executable: Executable, values: Sequence[Any], fixed: int = 0) -> list[Array]:
    """Run a program once on arrays; return the results as Arrays. values: as for `place`; fixed: as for `run`.

    An engine that has this itself keeps Arrays where its ranks read them.
    """
    own_way = getattr(executable, "run_arrays", None)
    if own_way is not None:
        return list(own_way(values, fixed))
    return collect(executable, executable.run(place(executable, values), fixed))


def laid_out(executable: Executable, values: Sequence[Any]) -> list[Array]:
    """Return the inputs of a program as Arrays that lie right, as `place` takes them; none is given up yet."""
    manifest = executable.manifest
    mesh = Mesh.parse(manifest.mesh)
    if len(values) != len(manifest.inputs):
        raise MeshweaveError(f"{len(values)} inputs, the program has {len(manifest.inputs)}")
    arrays = [
        _placed(port, index, value, mesh)
        for index, (port, value) in enumerate(zip(manifest.inputs, values, strict=True))
    ]
    check_given_once(manifest, values)
    return arrays


def check_given_once(manifest: Manifest, values: Sequence[Any]) -> None:
    """Raise UsageError, which names the inputs, where an Array that is donated is another input too."""
    if len(set(map(id, values))) == len(values):
        return
    for index in manifest.donated:
        if not isinstance(values[index], Array):
            continue
        for other, value in enumerate(values):
            if value is values[index] and other != index:
                raise UsageError(
                    f"inputs {index} and {other} are one Array, and input {index} is donated: give a copy"
                )


def check_global(port: Port, index: int, value: Any) -> None:
    """Raise MeshweaveError, which names the input, unless a value or an Array has the shape and dtype of a port."""
    name = f'input {index} "{port.name}"'
    shape = value.shape if isinstance(value, Array) else np.shape(value)
    check_shape(name, shape, port.global_shape)
    if isinstance(value, Array):
        return
    array, wanted = np.asarray(value), str(numpy_dtype(port.dtype))
    if port.dtype == _BF16:
        if array.dtype.name in ("bfloat16", "float32", "uint16"):
            return
        wanted = "bf16, as float32 or its bits as uint16,"
    elif array.dtype == numpy_dtype(port.dtype):
        return
    raise MeshweaveError(f"{name}: dtype {array.dtype}, {wanted} is right")


def _placed(port: Port, index: int, value: object, mesh: Mesh) -> Array:
    """Return an input as an Array in the layout of its port."""
    check_global(port, index, value)
    layout = Layout.parse(port.layout)
    name = f'input {index} "{port.name}"'
    if not isinstance(value, Array):
        try:
            return in_place_or_copied(as_numpy(value, name), mesh, layout, port.dtype)
        except MeshweaveError as error:
            raise MeshweaveError(f"{name}: {error.message}") from None
    right = (mesh, layout, port.dtype, own_rank(mesh))
    if (value.mesh, value.layout, value.dtype_name, value.kind.rank) != right:
        raise MeshweaveError(f"{name}: {value._kind()}, {port.dtype} {layout} on ({mesh}) is right")
    value.check_usable()
    return value


def in_place_or_copied(array: Values, mesh: Mesh, layout: Layout, dtype: str) -> Array:
    """Lay a global array out: over its own memory where the ranks can read that, else over copies."""
    right = array.dtype == numpy_dtype(dtype) or (dtype == _BF16 and array.dtype.name == "bfloat16")
    parts, rank = views(stored(array, dtype), mesh, layout) if right else None, own_rank(mesh)
    if parts is None:
        return laid_out_whole(array, mesh, layout, dtype)
    return Array(parts if rank is None else [parts[rank]], mesh, layout, array.shape, dtype, rank)


def collect(executable: Executable, outputs: Sequence[Sequence[Values]]) -> list[Array]:
    """Return the outputs `[rank][index]` of a program as arrays laid out as its manifest says; in a job of one."""
    return [
        collected(executable, index, [row[index] for row in outputs])
        for index in range(len(executable.manifest.outputs))
    ]


def collected(executable: Executable, index: int, column: Sequence[Values]) -> Array:
    """Return one output of a program as an array. column: what each rank holds; in a job, what this one does."""
    manifest = executable.manifest
    mesh, port = Mesh.parse(manifest.mesh), manifest.outputs[index]
    rank = own_rank(mesh) if len(column) == 1 else None
    layout = Layout.parse(port.layout)
    return Array(column, mesh, layout, port.global_shape, port.dtype, rank).alone()


def laid_out_whole(array: Values, on: Mesh, layout: object, dtype: Any = None) -> Array:
    """Lay a global array out, as `from_numpy` does; in a job it is taken to be the same on all ranks."""
    laid = as_layout(layout, array.ndim)
    try:
        wanted, rank = (
            dtype_name(array) if dtype is None else as_dtype_name(dtype),
            own_rank(on),
        )
        if laid.partial:  # neutral elements are numbers
            held = [narrow(p, wanted) for p in _scattered(wide(array, wanted), on, laid, rank)]
        else:
            held = _scattered(stored(array, wanted), on, laid, rank)
    except MeshweaveError as error:
        raise error.told(f"from_numpy: {error.message}") from None
    shards = [own(shard) for shard in held]
    made = Array(shards, on, laid, array.shape, wanted, rank)
    made._alone = not any(np.may_share_memory(shard, array) for shard in shards)
    return made


def _scattered(value: Values, mesh: Mesh, layout: Layout, rank: int | None) -> list[Values]:
    """Return the shards of all ranks, or of one."""
    if rank is None:
        return scatter(value, mesh, layout, aligned_array)
    layout.check(mesh, value.shape)
    return [scatter_to(rank, value, mesh, layout, aligned_array)]


def own(value: Values) -> Values:
    """Return the array if compiled code can work in it in place, else a copy, which calls need not copy again."""
    return value if usable(value) else copied(value)


def copied(value: Values) -> Values:
    """Return a copy that compiled code can work in."""
    copy = aligned_array(value.shape, value.dtype)
    copy[...] = value
    return copy


tell_einops()
