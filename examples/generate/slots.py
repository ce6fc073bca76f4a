"""Decode several sequences at a time, each of its own length: what `meshweave serve` puts behind HTTP.

$ meshweave serve examples/generate/slots.py --mesh tp=2 --slots 4

There are two programs, one for a prompt of any length, and one for the next token of all slots. Both have the cache
donated: a call writes the new keys and values into it, and nothing else of it. A prompt is not padded, and a step reads
the part of the cache that has tokens: each call says how long that is.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from generate import layouts, like, placed
from llama_jax import Config, Params, empty_cache, forward, parameters

import meshweave as mw


class SlotDecoder:
    """Hold a model on its ranks, its cache, and the programs for a prompt and for a token of each slot.

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

        one, each = np.zeros(1, np.int32), np.zeros(slots, np.int32)
        count = mw.Dim("count", max=config.length)
        self._prefill = compiled(self._prompt, mw.ShapeDtype((1, count), "i32"), one)
        self._decode = compiled(self._token_each, each, each, mw.ShapeDtype((count,), "i32"))

    def _prompt(self, params: Params, cache: Any, tokens: Any, slot: Any) -> Any:
        """Return the cache with the tokens of one slot, and the logits behind the last."""
        at = jnp.arange(tokens.shape[1])[None]

        def keep(kept: dict[str, Any], k: Any, v: Any) -> Any:
            return _put(kept, k, v, slot, at), k, v

        return forward(self._config, params, cache, tokens, 0, keep)

    def _token_each(self, params: Params, cache: Any, tokens: Any, places: Any, held: Any) -> Any:
        """Return the cache with a token in each slot, at its own place, and the logits behind it.

        held: as long as the longest sequence, which is all of the cache that is read; its numbers mean nothing.
        """
        rows, length = jnp.arange(self.slots), held.shape[0]

        def keep(kept: dict[str, Any], k: Any, v: Any) -> Any:
            whole = _put(kept, k, v, rows, places[:, None])
            return whole, whole["k"][:, :, :length], whole["v"][:, :, :length]

        return forward(self._config, params, cache, tokens[:, None], places, keep)

    def prefill(self, slot: int, tokens: np.ndarray) -> np.ndarray:
        """Put a prompt in a slot; return the logits behind it."""
        self._cache, logits = self._prefill(
            self._params, self._cache, tokens[None], np.asarray([slot], np.int32)
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
        """Return the tables about the program for a prompt, and about that for a token of each slot."""
        return self._prefill.explain(), self._decode.explain()

    def close(self) -> None:
        """Release threads, processes and memory."""
        self._prefill.close()
        self._decode.close()


def _put(kept: dict[str, Any], k: Any, v: Any, rows: Any, places: Any) -> dict[str, Any]:
    """Write new keys and values, (batch, groups, count, size), to rows (batch) and places (batch, count) of a cache."""
    at = (rows[:, None], slice(None), places)
    return {
        name: kept[name].at[at].set(new.transpose(0, 2, 1, 3)) for name, new in (("k", k), ("v", v))
    }


def decoder(
    mesh: str = "", engine: str = "local", slots: int = 4, timeout: float | None = None
) -> SlotDecoder:
    """Return the model that `meshweave serve` serves; these parameters are random."""
    config = Config()
    return SlotDecoder(config, parameters(config), slots, mesh, engine, timeout)
