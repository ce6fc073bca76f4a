"""Record what from_torch makes of the test models: the program as linalg text, and what torch computes.

python tests/data/torch/generate.py       writes NAME.mlir and NAME.npz beside itself; needs torch, which tests do not
"""

import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parents[1])]

import torch_models as tm  # noqa: E402

import meshweave as mw  # noqa: E402
from meshweave.torch.ports import from_tensor  # noqa: E402

MLP = {
    key.removeprefix("*."): said
    for key, said in tm.MEGATRON.items()
    if "up" in key or "down" in key
}
BLOCK = {**tm.MEGATRON, "x": "[dp, _, _]"}
SHARDED: dict[str, tuple[str | None, dict[str, str]]] = {
    "mlp": ("tp=2", MLP),
    "block": ("dp=2, tp=2", BLOCK),
    "hinted_block": ("dp=2, tp=2", BLOCK),
    "embedding": ("dp=2", {"tokens": "[dp, _]"}),
    "conv": ("dp=2", {"x": "[dp, _, _, _]"}),
    "masked_attention": (None, {}),
}


def record(name: str, module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    """Write the text and the numbers of one module."""
    mesh, said = SHARDED[name]
    with mw.from_torch(module, args, said, mesh) as program, torch.no_grad():
        text = program.text.replace(str(HERE.parents[2]) + "/", "")
        (HERE / f"{name}.mlir").write_text(text)
        given = [*(a.numpy() for a in program.parameters.values()), *map(from_tensor, args)]
        results = module(*args)
        results = results if isinstance(results, tuple) else (results,)
        arrays = {f"in{i}": value for i, value in enumerate(given)}
        arrays |= {f"out{i}": from_tensor(value) for i, value in enumerate(results)}
        np.savez_compressed(HERE / f"{name}.npz", **arrays)


if __name__ == "__main__":
    made = tm.models()
    torch.manual_seed(0)
    made["hinted_block"] = (
        tm.Block({"slice": "t=2", "order": "dfs"}).eval(),
        made["block"][1],
    )
    for chosen in SHARDED:
        record(chosen, *made[chosen])
