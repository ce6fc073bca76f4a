"""from_torch against PyTorch: the same numbers on every mesh, parameters bound once, placements taken over."""

from typing import Any

import numpy as np
import pytest
from depth import some

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch_models as tm  # noqa: E402
from torch.utils import _pytree  # noqa: E402

import meshweave as mw  # noqa: E402
from meshweave.errors import LayoutError, MeshweaveError, UsageError  # noqa: E402

MODELS = tm.models()
TOLERANCE = 2e-4


def near(found: Any, wanted: Any) -> None:
    """Equal within the tolerance of f32, structure and dtypes too."""
    ours, own = _pytree.tree_flatten(found)
    theirs, their = _pytree.tree_flatten(wanted)
    assert own == their
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        scale = max(1e-30, float(other.abs().max()))
        assert float((one - other).abs().max()) <= TOLERANCE * scale


def check(module: Any, args: tuple[Any, ...], **options: Any) -> Any:
    """Compile, run, compare; the closed program."""
    with mw.from_torch(module, args, **options) as program:
        with torch.no_grad():
            near(program(*args), module(*args))
        return program


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mesh", some(["dp=2", None, "dp=4"], 3))
def test_models_agree_with_torch(name: str, mesh: str | None) -> None:
    module, args = MODELS[name]
    placements = {"*": None}
    if mesh is not None:
        ep = torch.export.export(module, args)
        first = ep.graph_signature.user_inputs[0]
        placements = {first: "[dp" + ", _" * (args[0].ndim - 1) + "]"}
    program = check(module, args, mesh=mesh, placements=placements)
    assert program.mesh.nranks == {None: 1, "dp=2": 2, "dp=4": 4}[mesh]


@pytest.mark.parametrize("mesh", ["tp=2", "tp=4", "dp=2, tp=2"])
def test_a_block_split_as_megatron_does(mesh: str) -> None:
    module, args = MODELS["block"]
    placements = {**tm.MEGATRON, "x": "[dp, _, _]" if "dp" in mesh else "[_, _, _]"}
    program = check(module, args, mesh=mesh, placements=placements)
    weight = program.parameters["mlp.up.weight"]
    assert weight.shards[0].shape == (4 * tm.WIDTH // program.mesh.size("tp"), tm.WIDTH)
    sums = [c for c in program.program.bundle.manifest.collectives if c.op == "all_reduce"]
    assert len(sums) == 2, "one sum behind the attention, one behind the MLP"


def test_an_exported_program_is_taken_as_it_is() -> None:
    module, args = MODELS["mlp"]
    program = torch.export.export(module, args)
    check_ = mw.from_torch(program, mesh="tp=2", placements={"up.weight": "[tp, _]"})
    near(check_(*args), module(*args))
    check_.close()


def test_parameters_are_arguments_of_the_program_not_constants_in_it() -> None:
    module, args = MODELS["mlp"]
    program = check(module, args)
    assert set(program.parameters) == {"up.weight", "up.bias", "down.weight", "down.bias"}
    assert all(isinstance(value, mw.Array) for value in program.parameters.values())
    assert len(program.text) < 20_000 and "dense<" not in program.text


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_that_a_module_holds_are_arguments_too(kind: Any) -> None:
    held = (torch.arange(60000.0).reshape(200, 300) % 251 - 7).to(kind)

    class Adds(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + held, held[3:5] * 2 + x[3:5].to(kind)

    program = check(Adds().eval(), (torch.ones(200, 300),), mesh="x=2")
    assert len(program.program.inputs) == 2 and len(program.text) < held.numel() // 10


def test_bind_gives_new_values_to_parameters() -> None:
    torch.manual_seed(1)
    module, other = tm.Mlp().eval(), tm.Mlp().eval()
    x = torch.randn(3, tm.WIDTH)
    with mw.from_torch(module, (x,), mesh="tp=2", placements={"up.weight": "[tp, _]"}) as program:
        program.bind(other.state_dict())
        near(program(x), other(x).detach())
        with pytest.raises(
            UsageError, match=r'bind: the program holds no "up": there are up.weight'
        ):
            program.bind({"up": 1})
        with pytest.raises(MeshweaveError, match=r"up.bias: shape .3,., .128,. is right"):
            program.bind({"up.bias": np.zeros(3, np.float32)})


def test_arrays_in_arrays_out() -> None:
    module, (x,) = MODELS["mlp"]
    with mw.from_torch(module, (x,), mesh="dp=2", placements={"x": "[dp, _, _]"}) as program:
        found = program(mw.Array.from_numpy(x.numpy(), mesh="dp=2", layout="[_, dp, _]"))
        assert isinstance(found, mw.Array)
        near(torch.from_numpy(found.numpy()), module(x).detach())
        assert isinstance(program(x.numpy()), mw.Array)


def test_structures_of_arguments_and_results() -> None:
    class Structured(torch.nn.Module):
        def forward(self, pair: Any, *, scale: Any) -> dict[str, Any]:
            return {"sum": pair[0] + pair[1]["b"] * scale, "rest": (pair[0], 3)}

    pair = (torch.ones(4), {"b": torch.arange(4.0)})
    module, scale = Structured(), torch.tensor(2.0)
    with mw.from_torch(module, (pair,), kwargs={"scale": scale}) as program:
        found, wanted = program(pair, scale=scale), module(pair, scale=scale)
        assert found["rest"][1] == 3
        near({**found, "rest": found["rest"][0]}, {**wanted, "rest": wanted["rest"][0]})


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int32", "bool"])
def test_dtypes(dtype: str) -> None:
    kind = getattr(torch, dtype)
    x = (torch.arange(12).reshape(3, 4) % 5).to(kind)
    module = tm.Fn(lambda v: v | ~v.flip(0) if v.dtype == torch.bool else v * 3 + v.flip(0))
    with mw.from_torch(module, (x,)) as program:
        found = program(x)
        assert found.dtype == kind and torch.equal(found, module(x))


def test_out_placements() -> None:
    module, args = MODELS["mlp"]
    program = check(module, args, mesh="dp=2", out_placements="[_, dp, _]")
    assert program.program.outputs[0].layout == "[_, dp, _]"


def test_placements_in_every_notation() -> None:
    from torch.distributed.tensor import Replicate, Shard

    module, args = MODELS["mlp"]
    said = {
        "up.weight": mw.P("tp", None),
        "up.bias": [Shard(0)],
        "down.weight": (mw.Mesh(tp=2), [Shard(1)]),
        "down.bias": [Replicate()],
        "x": mw.Layout.parse("[_, _, _]"),
    }
    program = check(module, args, mesh="tp=2", placements=said)
    layouts = {name: str(value.layout) for name, value in program.parameters.items()}
    assert layouts == {
        "up.weight": "[tp, _]", "up.bias": "[tp]", "down.weight": "[_, tp]", "down.bias": "[_]",
    }  # fmt: skip


@pytest.fixture
def fake_group() -> Any:
    """A process group of two ranks, of which this process is the first."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def test_a_module_of_dtensors(fake_group: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.manual_seed(2)
    module, x = tm.Mlp().eval(), torch.randn(4, tm.WIDTH)
    wanted, state = module(x).detach(), {k: v.clone() for k, v in module.state_dict().items()}
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    said = {"up.weight": Shard(0), "up.bias": Shard(0), "down.weight": Shard(1)}
    for name, value in list(module.named_parameters()):
        owner = module.get_submodule(name.split(".")[0])
        placed = distribute_tensor(value.detach(), mesh, [said.get(name, Replicate())])
        owner._parameters[name.split(".")[1]] = torch.nn.Parameter(placed)
    before = module.up.weight
    with pytest.raises(UsageError, match=r"up.weight is a DTensor over a fake process group"):
        mw.from_torch(module, (x,))
    with mw.from_torch(module, (x,), state=state) as program:
        assert str(program.mesh) == "tp=2"
        assert str(program.parameters["up.weight"].layout) == "[tp, _]"
        assert str(program.parameters["down.weight"].layout) == "[_, tp]"
        near(program(x), wanted)
    assert module.up.weight is before, "the module is as it was"
    with pytest.raises(UsageError, match=r"a DTensor lies on the mesh \(tp=2\), the program on"):
        mw.from_torch(module, (x,), mesh="tp=4", state=state)


def test_a_dtensor_as_an_argument(fake_group: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    module, (x,) = MODELS["mlp"]
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    with mw.from_torch(module, (distribute_tensor(x, mesh, [Shard(0)]),)) as program:
        assert program.program.inputs[-1].layout == "[dp, _, _]"
        near(program(x), module(x).detach())


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"up": "[tp, _]"}, 'placements: no tensor "up": there are up.weight, '),
        ({"up.weight": "[q, _]"}, "placements of up.weight: .*q"),
        ({"up.weight": "[tp]"}, "placements of up.weight: "),
        ({"up.weight": 3}, "placements of up.weight: a layout such as"),
        ({"up.weight": ("tp=4", [])}, "placements on the mesh .tp=4., the program is on .tp=2."),
        ([1], "placements: a dictionary of names is needed, got list"),
    ],
)
def test_wrong_placements(said: Any, message: str) -> None:
    module, args = MODELS["mlp"]
    with pytest.raises((UsageError, LayoutError), match=message) as raised:
        mw.from_torch(module, args, said, "tp=2")
    assert "\n" not in str(raised.value)


def test_an_argument_that_is_a_view_of_another() -> None:
    base = torch.randn(4, 4)
    check(tm.Fn(lambda a, b: a * 2 + b), (base.T, base))
