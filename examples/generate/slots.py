"""Decode several sequences at a time, each of its own length: what `meshweave serve` puts behind HTTP.

$ meshweave serve examples/generate/slots.py --mesh tp=2 --slots 4

There are two programs, one for a part of a prompt and one for the next token of all slots. Both have the cache donated:
a call writes the new keys and values into it, and nothing else of it. A step reads the part of the cache that has
tokens: each call says how long that is.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from generate import layouts, like, placed
from llama_jax import Config, Params, empty_cache, forward, parameters

import meshweave as mw

PART = 16  # tokens of a prompt that one call takes; the cache is a multiple of it


class SlotDecoder:
    """Hold a model on its ranks, its cache, and the programs for a part of a prompt and for a token of each slot.

    slots: sequences at a time. ends: tokens that end one.
    """

    def __init__(
        self,
        config: Config,
        params: Params,
        slots: int,
        mesh: str = "",
        engine: str = "local",
        timeout: float | None = None,
        ends: tuple[int, ...] = (),
    ) -> None:
        if config.length % PART:
            raise ValueError(f"a cache of {config.length} tokens: a multiple of {PART} is right")
        self.slots, self.ends = slots, ends
        self.length, self.vocabulary = config.length, config.vocabulary
        self._config, self._dtype, self._mesh = config, params["norm"].dtype, mesh
        where, self._cache_layouts = layouts(config)
        self._params = placed(params, where, mesh)
        self.reset()

        def compiled(step: Callable[..., Any], *more: Any) -> Any:
            step = jax.jit(step, donate_argnums=1, keep_unused=True)
            return mw.from_jax(
                step, *jax.tree.map(like, (self._params, self._cache)), *more,
                in_shardings=(where, self._cache_layouts, *[None] * len(more)) if mesh else None,
                mesh=mesh or None, engine=engine, timeout=timeout,
            )  # fmt: skip

        number = np.int32(0)
        part, each = np.zeros((1, PART), np.int32), np.zeros(slots, np.int32)
        held = mw.ShapeDtype((mw.Dim("held", max=config.length),), "i32")
        self._prefill = compiled(self._part_of_prompt, part, number, number, number)
        self._decode = compiled(self._token_each, each, each, held)

    def _part_of_prompt(
        self, params: Params, cache: Any, tokens: Any, slot: Any, start: Any, last: Any
    ) -> Any:
        """Return the cache with tokens of one slot, from place `start` on, and the logits behind token `last`."""

        def keep(kept: dict[str, Any], k: Any, v: Any) -> Any:
            at, new = (slot, 0, start, 0), {"k": k, "v": v}
            whole = {n: jax.lax.dynamic_update_slice(kept[n], new[n], at) for n in kept}
            row = {n: jax.lax.dynamic_slice_in_dim(whole[n], slot, 1) for n in whole}
            return whole, row["k"], row["v"]

        return forward(self._config, params, cache, tokens, start, keep, last)

    def _token_each(self, params: Params, cache: Any, tokens: Any, places: Any, held: Any) -> Any:
        """Return the cache with a token in each slot, at its own place, and the logits behind it.

        held: as long as the longest sequence, which is all of the cache that is read; its numbers mean nothing.
        """
        rows, length = jnp.arange(self.slots), held.shape[0]

        def keep(kept: dict[str, Any], k: Any, v: Any) -> Any:
            new = {"k": k[:, :, 0], "v": v[:, :, 0]}
            whole = {n: kept[n].at[rows, :, places].set(new[n]) for n in kept}
            return whole, whole["k"][:, :, :length], whole["v"][:, :, :length]

        return forward(self._config, params, cache, tokens[:, None], places, keep)

    def prefill(self, slot: int, tokens: np.ndarray) -> np.ndarray:
        """Put a prompt in a slot; return the logits behind it."""
        for start in range(0, len(tokens), PART):
            given = tokens[start : start + PART]
            part = np.zeros((1, PART), np.int32)
            part[0, : len(given)] = given  # what is behind is written over before anyone looks
            last = np.int32(len(given) - 1)
            self._cache, logits = self._prefill(
                self._params, self._cache, part, np.int32(slot), np.int32(start), last
            )
        return np.asarray(logits, np.float32)[0]

    def decode(self, tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Put a token in each slot, at its place; return the logits behind each."""
        held = np.zeros(places.max() + 1, np.int32)
        self._cache, logits = self._decode(self._params, self._cache, tokens, places, held)
        return np.asarray(logits, np.float32)

    def reset(self) -> None:
        """Begin with an empty cache."""
        cache = empty_cache(self._config, self.slots, self._dtype)
        self._cache = placed(cache, self._cache_layouts, self._mesh)

    def explain(self) -> tuple[str, str]:
        """Return the tables about the program for a part of a prompt, and about that for a token of each slot."""
        return self._prefill.explain(), self._decode.explain()

    def close(self) -> None:
        """Release threads, processes and memory."""
        self._prefill.close()
        self._decode.close()


def decoder(
    mesh: str = "", engine: str = "local", slots: int = 4, timeout: float | None = None
) -> SlotDecoder:
    """Return the model that `meshweave serve` serves; these parameters are random."""
    config = Config()
    return SlotDecoder(config, parameters(config), slots, mesh, engine, timeout)
