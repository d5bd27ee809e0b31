"""Operations that make entries, by whether their backward needs what they have made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Operation = Callable[[Tensor], Tensor]

ROWS, WIDTH = 10, 8


class SavesOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x * x
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return 2 * y.sqrt() * grad


class KeepsOutput(SavesOutput):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x * x
        ctx.y = y.detach()
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * ctx.y.sqrt() * grad


class SavesInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def _image(x: Tensor) -> Tensor:
    return x.view(1, 1, ROWS, WIDTH)


def _attention(x: Tensor) -> Tensor:
    x = x.view(1, 1, ROWS, WIDTH)
    return F.scaled_dot_product_attention(x, x, x).view(ROWS, WIDTH)


def _const(*shape: int) -> Tensor:
    return torch.linspace(0.1, 1, int(torch.Size(shape).numel()), device=_device()).view(shape)


def _device() -> torch.device:
    return torch.get_default_device()


def _roi(x: Tensor) -> Tensor:
    """Sample rows at places between pixels, as RoI align does."""
    places = _const(ROWS, 2, 4, 2)
    return F.grid_sample(x.view(ROWS, 1, 2, 4), places, align_corners=False).view(ROWS, WIDTH)


FREE: dict[str, Operation] = {
    "linear": lambda x: F.linear(x, _const(WIDTH, WIDTH), _const(WIDTH)),
    "matmul": lambda x: x @ _const(WIDTH, WIDTH),
    "conv2d": lambda x: F.conv2d(_image(x), _const(1, 1, 3, 3), padding=1).view(ROWS, WIDTH),
    "conv1d": lambda x: F.conv1d(x.unsqueeze(1), _const(1, 1, 3), padding=1).squeeze(1),
    "conv_transpose2d": lambda x: F.conv_transpose2d(_image(x), _const(1, 1, 1, 1)).view(ROWS, -1),
    "grid_sample": _roi,
    "interpolate": lambda x: F.interpolate(_image(x), scale_factor=1.0, mode="bilinear")[0, 0],
    "add": lambda x: x + 1,
    "sub of another": lambda x: x - x.flip(0),
    "mul by a number": lambda x: x * 3,
    "mul by a constant": lambda x: x * _const(ROWS, WIDTH),
    "square": lambda x: x * x,
    "div": lambda x: x / 3,
    "pow": lambda x: x**2,
    "sin": torch.sin,
    "log": torch.log,
    "abs": torch.abs,
    "gelu": F.gelu,
    "silu": F.silu,
    "leaky_relu": F.leaky_relu,
    "layer_norm": lambda x: F.layer_norm(x, (WIDTH,)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "avg_pool": lambda x: F.avg_pool1d(x.unsqueeze(1), 1).squeeze(1),
    "max_pool with indices": lambda x: F.max_pool1d(x.unsqueeze(1), 1).squeeze(1),
    "max_pool2d": lambda x: F.max_pool2d(_image(x), 3, 1, 1).view(ROWS, WIDTH),
    "dropout": lambda x: F.dropout(x, 0.5),
    "embedding": lambda x: F.embedding(torch.arange(ROWS, device=x.device).flip(0), x),
    "index_select": lambda x: x.index_select(0, torch.arange(ROWS, device=x.device)),
    "gather": lambda x: x.gather(1, torch.zeros(ROWS, WIDTH, dtype=torch.int64, device=x.device)),
    "cat": lambda x: torch.cat([x[:4], x[4:]]),
    "stack": lambda x: torch.stack(list(x)),
    "clone": torch.clone,
    "where": lambda x: torch.where(x > 0, x, -x),
    "cumsum": lambda x: x.cumsum(0),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, _const(WIDTH, WIDTH)),
    "to another dtype": lambda x: x.double(),
    "a function that saves its input": SavesInput.apply,
}
SAVING: dict[str, Operation] = {
    "relu": torch.relu,
    "relu in place": lambda x: F.relu(x + 0, inplace=True),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "tan": torch.tan,
    "elu in place": lambda x: F.elu(x * 1, inplace=True),
    "attention": _attention,
    "a function that saves its output": SavesOutput.apply,
    "a function that keeps its output": KeepsOutput.apply,
}


def parameter() -> Tensor:
    """Return positive numbers that require grad, all different."""
    return torch.linspace(0.2, 2, ROWS * WIDTH, device=_device()).view(ROWS, WIDTH).requires_grad_()


def split(made: list[Tensor]) -> dict[str, list[Tensor]]:
    """Empty `made`, and return what was in it as 2 keys of 2 batches: views of a dead tensor."""
    views = list(made.pop().split([3, 2, 4, 1]))
    return {"a": views[:2], "b": views[2:]}


def loss(flat: Any) -> Tensor:
    """Return a number in which every element counts differently, also in second derivatives."""
    terms = [
        (
            t**2 * torch.linspace(1, 2 + b, t.numel(), dtype=t.dtype, device=t.device).view_as(t)
        ).sum()
        for b, t in enumerate(flat)
    ]
    return torch.stack(terms).sum()
