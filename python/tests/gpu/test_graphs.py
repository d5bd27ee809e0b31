"""CUDA graphs: captured cold and warm, replayed with other contents, never broken by an error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from gpu.support import (
    DEVICE,
    bits,
    check,
    check_bits,
    entries,
    growth,
    integers,
    job,
    oracle,
    refill,
    run,
    seed_job,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Features = dict[str, list[Tensor]]

pytestmark = pytest.mark.usefixtures("cuda")


def capture(call: Callable[[], Any], mode: str = "global") -> tuple[torch.cuda.CUDAGraph, Any]:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        result = call()
    return graph, result


def replays(graph: torch.cuda.CUDAGraph, features: Features, flat: Any, dim: int = 0) -> None:
    """Assert that each replay gives what the entries hold then."""
    for _ in range(3):
        refill(features)
        graph.replay()
        torch.cuda.synchronize()
        check_bits([t.detach() for t in flat], oracle(features, dim))


def cold(mode: str, form: str) -> None:
    """Run in a child: the very first job of the process is part of a graph."""
    features = job([[5, 60], [0, 8], [700, 1]], (33,))
    wants = {
        "new": {},
        "packed": {"packed": True},
        "out": {"out": [bits((705, 33)), bits((69, 33))]},
    }
    graph, flat = capture(lambda: goflat.flatten(features, **wants[form]), mode)
    replays(graph, features, flat)


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        ("global", "new"),
        ("global", "packed"),
        ("global", "out"),
        ("thread_local", "new"),
        ("relaxed", "new"),
    ],
)
def test_cold(mode: str, form: str) -> None:
    run(f"from gpu.test_graphs import cold; cold({mode!r}, {form!r})")


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_warm(mode: str) -> None:
    features = seed_job()
    goflat.flatten(features)
    graph, flat = capture(lambda: goflat.flatten(features), mode)
    replays(graph, features, flat)
    check(features, flat)


def test_packed_strided_and_out() -> None:
    features = job([[5, 6], [7, 8]], (4, 9))
    graph, flat = capture(lambda: goflat.flatten(features, packed=True))
    replays(graph, features, flat)
    turned = {key: [t.transpose(1, 2) for t in x] for key, x in features.items()}
    graph, flat = capture(lambda: goflat.flatten(turned))
    for _ in range(2):
        refill(features)
        graph.replay()
        torch.cuda.synchronize()
        check(turned, flat)
    hay = bits((40, 4, 18))
    outs = [hay[:12, :, ::2], hay[12:26, :, 1::2]]
    graph, _ = capture(lambda: goflat.flatten(features, out=outs))
    addresses = [out.data_ptr() for out in outs]
    replays(graph, features, outs)
    assert [out.data_ptr() for out in outs] == addresses


def test_more_entries_than_one_launch_takes() -> None:
    base = bits((30_000, 3), torch.int32)
    features = {str(k): list(base[3000 * k : 3000 * (k + 1)].split(1)) for k in range(10)}
    graph, flat = capture(lambda: goflat.flatten(features))
    base.random_()
    graph.replay()
    torch.cuda.synchronize()
    check_bits([torch.cat(list(flat))], [base.view(10, 3000, 3).transpose(0, 1).reshape(-1, 3)])


def test_several_jobs_in_a_graph() -> None:
    """Producers, two jobs of which one reads the other's outputs, and a consumer."""
    features = job([[5, 6], [7, 8]], (16,))
    source = [t.clone() for t in entries(features)]

    def step() -> Any:
        for t, s in zip(entries(features), source, strict=True):
            t.copy_(s)
        flat = goflat.flatten(features)
        again = goflat.flatten({"a": flat, "b": flat[::-1]})
        return flat, again, [out.view(torch.int32) + 1 for out in again]

    graph, (flat, again, plus) = capture(step)
    for _ in range(3):
        for s in source:
            s.view(torch.int32).random_()
        graph.replay()
        torch.cuda.synchronize()
        check_bits(flat, oracle(features))
        check_bits(
            again, [integers(torch.cat([flat[0], flat[1]])), integers(torch.cat(flat[::-1]))]
        )
        check_bits(plus, [integers(out) + 1 for out in again])


def test_an_error_leaves_the_capture_usable() -> None:
    features, wrong = job(), job()
    wrong["1"][1] = bits((2, 4))
    mixed = job()
    mixed["1"][1] = torch.empty(4, 3)
    outs = [bits((5, 3)), bits((7, 3))]

    def step() -> Any:
        for bad, options in ((wrong, {}), (mixed, {}), (features, {"out": outs[:1]})):
            with pytest.raises(goflat.Error):
                goflat.flatten(bad, **options)
        return goflat.flatten(features)

    graph, flat = capture(step)
    replays(graph, features, flat)


def test_other_threads_go_on_during_a_capture() -> None:
    features, theirs = seed_job(), job()
    want = oracle(theirs)
    goflat.flatten(theirs)
    torch.cuda.synchronize()

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            outs = [torch.empty_like(t.view(torch.float32)) for t in want]
            for _ in range(20):
                goflat.flatten(theirs, out=outs)
            torch.cuda.current_stream().synchronize()
            check_bits(outs, want)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()

        def step() -> Any:
            done = pool.submit(work)
            flat = goflat.flatten(features)
            done.result()
            return flat

        graph, flat = capture(step, "thread_local")
    replays(graph, features, flat)


def test_replays_allocate_nothing() -> None:
    features = seed_job()
    graph, _flat = capture(lambda: goflat.flatten(features))
    graph.replay()
    _, rose = growth(lambda: [graph.replay() for _ in range(100)])
    assert rose == 0
    torch.cuda.synchronize()


def test_graphs_and_eager_calls_take_turns() -> None:
    features = job()
    graph, flat = capture(lambda: goflat.flatten(features))
    for _ in range(5):
        refill(features)
        graph.replay()
        eager = goflat.flatten(features)
        check_bits(eager, oracle(features))
        check_bits(flat, oracle(features))


def test_make_graphed_callables() -> None:
    """The captured forward and backward of a module that flattens."""

    class Join(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return goflat.cat([a * 2, b * 3])

    a, b = (torch.rand(4, 3, device=DEVICE, requires_grad=True) for _ in range(2))
    joined = torch.cuda.make_graphed_callables(Join(), (a, b))
    x, y = (torch.rand(4, 3, device=DEVICE, requires_grad=True) for _ in range(2))
    out = joined(x, y)
    assert torch.equal(out, torch.cat([x * 2, y * 3]))
    out.sum().backward()
    assert bool((x.grad == 2).all())
    assert bool((y.grad == 3).all())
