"""Processes that train together or share memory."""

from __future__ import annotations

from helpers import child, engines

DDP = """
from helpers.ranks import gradients, on_two_ranks

def work(rank):
    import torch, goflat
    assert goflat._native.available() is native
    cat = lambda x: [torch.cat([x[k][b] for k in x]) for b in range(3)]
    ways = {
        "flatten": goflat.flatten,
        "packed": lambda x: goflat.flatten(x, packed=True),
        "flatten_": lambda x: goflat.flatten_(x, max_growth=1 << 30),
        "cat_": lambda x: [goflat.cat_([x[k][b] for k in x], max_growth=1 << 30) for b in range(3)],
    }
    want = gradients(cat, rank)
    assert len(want) == 6
    for name, way in ways.items():
        got = gradients(way, rank)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)), name
        for grad in got:
            theirs = grad.clone()
            torch.distributed.broadcast(theirs, src=0)
            assert torch.equal(grad, theirs), name

on_two_ranks(work)
"""


def test_distributed_data_parallel() -> None:
    """Gradients are those of torch.cat, bit for bit, and equal on both ranks."""
    native = engines.engine("native") is not None
    assert child.fork(f"native = {native}\n" + DDP) == ""


SHARING = """
import os, warnings
import torch, goflat
from torch import multiprocessing

torch.set_num_threads(1)
warnings.simplefilter("ignore", DeprecationWarning)
warnings.filterwarnings("ignore", "goflat runs in pure Python")

def features():
    whole = torch.arange(12.0).reshape(6, 2)
    return {"a": list(whole[:3].split([1, 2])), "b": list(whole[3:].split([2, 1]))}

want = [torch.cat([x["a"][b], x["b"][b]]) for x in [features()] for b in range(2)]
same = lambda got, want: all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
fork = multiprocessing.get_context("fork")
"""


def test_results_travel_to_other_processes() -> None:
    """And are one memory there and here, as any tensors that torch sends."""
    code = """
made = {
    "flatten": goflat.flatten(features()),
    "packed": goflat.flatten(features(), packed=True),
    "flatten_": goflat.flatten_(features(), max_growth=1 << 30),
}
sent, back = fork.Queue(), fork.Queue()

def child():
    for _ in made:
        flat = sent.get()
        back.put((same(flat, want), flat.layout, flat.plan.growth))
        for out in flat:
            out.mul_(2)
        if flat.buffer is not None:
            assert torch.equal(flat.buffer, torch.cat(want) * 2)

process = fork.Process(target=child)
process.start()
for name, flat in made.items():
    sent.put(flat)
    right, layout, growth = back.get(timeout=30)
    assert right and layout == flat.layout and growth == flat.plan.growth, name
process.join(30)
assert process.exitcode == 0
for name, flat in made.items():
    assert same(flat, [w * 2 for w in want]), name
"""
    assert child.fork(SHARING + code) == ""


def test_shared_entries_are_never_written_over() -> None:
    code = """
shared = {key: [x.share_memory_() for x in entries] for key, entries in features().items()}
views = [x.detach() for entries in shared.values() for x in entries]
before = [view.clone() for view in views]
addresses = {view.data_ptr() for view in views}
assert same(goflat.flatten(shared), want)
flat = goflat.flatten_(shared, max_growth=1 << 30)
assert same(flat, want) and same(views, before)
assert not {out.data_ptr() for out in flat} & addresses

entry = torch.arange(4.0).share_memory_()
def child():
    assert same(goflat.flatten_({"a": [entry[:3]], "b": [entry[3:]]}, max_growth=1 << 30), [entry])
    entry.add_(1)

process = fork.Process(target=child)
process.start()
process.join(30)
assert process.exitcode == 0
parts = list(entry.split([1, 3]))[::-1]
joined = goflat.cat_(parts, max_growth=1 << 30)
assert joined.tolist() == [2, 3, 4, 1] and entry.tolist() == [1, 2, 3, 4]
"""
    assert child.fork(SHARING + code) == ""
