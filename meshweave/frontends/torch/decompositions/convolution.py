"""Decompose transposed convolutions, and the gradients of convolutions, into plain ones that meet no zeros.

Those of groups in three dims, which upstream does not know, become ones of two dims.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from meshweave.frontends.torch.decompositions.halves import wide
from meshweave.frontends.windows import Phase, WindowDim, phases


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Decompose a convolution where it is a transposed one, or one of groups in three dims."""
    if not transposed and (groups == 1 or weight.dim() < 5):
        return NotImplemented
    if not transposed:
        plain = _each(stride, weight), _each(padding, weight), _each(dilation, weight)
        return _by_planes(input, weight, bias, plain, groups)
    settings = (stride, padding, dilation, output_padding)
    steps = zip(*(_each(numbers, weight) for numbers in settings))
    sizes = zip(input.shape[2:], weight.shape[2:])
    axes = [
        WindowDim(
            image=image,
            window=window,
            result=(image - 1) * base - 2 * low + far * (window - 1) + more + 1,
            stride=1,
            dilation=far,
            low=far * (window - 1) - low,
            base=base,
        )
        for (image, window), (base, low, far, more) in zip(sizes, steps)
    ]
    out = _spread(input, _turned(weight, groups), axes, groups)
    return out if bias is None else out + bias.reshape(-1, *[1] * len(axes))


def _by_planes(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    settings: tuple[Sequence[int], Sequence[int], Sequence[int]],
    groups: int,
) -> Tensor:
    """Return a convolution in three dims: for each place of the window's first dim one of planes, added up."""
    (step, *steps), (low, *lows), (far, *fars) = settings
    image, window = wide(input), wide(weight)
    if low:
        image = torch.ops.aten.constant_pad_nd.default(image, [0] * 4 + [low, low], 0.0)
    count = (image.shape[2] - far * (weight.shape[2] - 1) - 1) // step + 1
    planes = image.transpose(1, 2)
    total = None
    for k in range(weight.shape[2]):
        last = k * far + (count - 1) * step + 1
        part = torch.ops.aten.slice.Tensor(planes, 1, k * far, last, step)
        made = torch.ops.aten.convolution.default(
            part.flatten(0, 1), window[:, :, k], None, steps, lows, fars, False, [0, 0], groups
        )
        total = made if total is None else total + made
    assert total is not None
    out = total.unflatten(0, (input.shape[0], count)).transpose(1, 2)
    return (out if bias is None else out + bias.reshape(-1, 1, 1, 1)).to(input.dtype)


def backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Decompose the gradients of a convolution by its input, its weight and its bias, as far as `output_mask` says."""
    stride, padding, dilation = (_each(n, weight) for n in (stride, padding, dilation))
    by_input = by_weight = by_bias = None
    none = [0] * len(stride)
    if output_mask[0] and transposed:
        settings = (None, stride, padding, dilation, False, none, groups)
        made = torch.ops.aten.convolution.default(grad_output, weight, *settings)
        by_input = _cropped(made, input.shape)
    elif output_mask[0]:
        reached = [
            (n - 1) * s - 2 * p + d * (k - 1) + 1
            for n, k, s, p, d in zip(
                grad_output.shape[2:], weight.shape[2:], stride, padding, dilation
            )
        ]
        more = [n - m for n, m in zip(input.shape[2:], reached)]
        by_input = convolution(
            grad_output, weight, None, stride, padding, dilation, True, more, groups
        )
    if output_mask[1]:
        image, slope = (grad_output, input) if transposed else (input, grad_output)
        by_weight = _by_weight(image, slope, weight, (stride, padding, dilation), groups)
    if output_mask[2]:
        by_bias = grad_output.sum([0, *range(2, grad_output.dim())])
    return by_input, by_weight, by_bias


def _each(numbers: Sequence[int], weight: Tensor) -> list[int]:
    """Return a setting for each dim of the window; one number is for all."""
    return list(numbers) if len(numbers) > 1 else list(numbers) * (weight.dim() - 2)


def _by_weight(
    image: Tensor,
    slope: Tensor,
    weight: Tensor,
    settings: tuple[Sequence[int], Sequence[int], Sequence[int]],
    groups: int,
) -> Tensor:
    """Return the gradient of a weight: the image's convolution with the slopes, summed over the batch.

    What was the step of the window is now how far its places are apart, and the other way round.
    """
    stride, padding, dilation = settings
    batch, channels, *space = image.shape
    apart = image.reshape(batch, groups, channels // groups, *space).transpose(0, 2)
    apart = apart.reshape(channels // groups, groups * batch, *space)
    none = [0] * len(space)
    found = torch.ops.aten.convolution.default(
        apart, slope.transpose(0, 1), None, dilation, padding, stride, False, none, groups
    )
    return _cropped(found, weight.shape).transpose(0, 1)


def _cropped(value: Tensor, shape: Sequence[int]) -> Tensor:
    """Return as much of the dims of space as `shape` has."""
    for dim, size in enumerate(shape[2:], 2):
        value = value.narrow(dim, 0, size)
    return value


def _turned(weight: Tensor, groups: int) -> Tensor:
    """Return the weight of a transposed convolution as that of a plain one."""
    channels, results, *window = weight.shape
    apart = weight.reshape(groups, channels // groups, results, *window).transpose(1, 2)
    apart = apart.reshape(groups * results, channels // groups, *window)
    return apart.flip(list(range(2, apart.dim())))


def _spread(input: Tensor, weight: Tensor, axes: Sequence[WindowDim], groups: int) -> Tensor:
    """Return the convolution of a dilated image: that of each phase, side by side."""
    by_axis = [phases(axis) for axis in axes]
    made = [_phase(input, weight, axes, part, groups) for part in itertools.product(*by_axis)]
    for dim, found in reversed(list(enumerate(by_axis, 2))):
        rows = [made[k : k + len(found)] for k in range(0, len(made), len(found))]
        made = [torch.stack(row, dim + 1).flatten(dim, dim + 1) for row in rows]
    return _cropped(made[0], [*input.shape[:2], *(axis.result for axis in axes)])


def _phase(
    input: Tensor, weight: Tensor, axes: Sequence[WindowDim], part: Sequence[Phase], groups: int
) -> Tensor:
    """Return the convolution of the input with its part of the window; zeros where it meets none."""
    plain = [phase.axis for phase in part if phase.axis is not None]
    if len(plain) < len(part):
        shape = [-(-axis.result // axis.period) for axis in axes]
        return input.new_zeros([input.shape[0], weight.shape[0], *shape])
    for dim, phase in enumerate(part, 2):
        first, step = phase.window
        weight = torch.ops.aten.slice.Tensor(weight, dim, first, weight.shape[dim], step)
    around = [n for axis in reversed(plain) for n in (axis.low, axis.high)]
    if any(around):
        input = torch.ops.aten.constant_pad_nd.default(input, around, 0.0)
    strides, far = [axis.stride for axis in plain], [axis.dilation for axis in plain]
    none = [0] * len(plain)
    return torch.ops.aten.convolution.default(
        input, weight, None, strides, none, far, False, none, groups
    )
