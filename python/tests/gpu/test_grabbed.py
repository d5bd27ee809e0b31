"""On a GPU no memory is handed out twice, whatever fails and whoever gets hold of an entry when."""

from __future__ import annotations

import sys
import weakref
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch

import goflat
from goflat import _native
from gpu.support import bits, check_bits, job, oracle, raw, wait
from gpu.test_consume import LOTS, fresh, parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Features = dict[str, list[Tensor]]

RAGGED = [[3, 40, 11, 7], [25, 4, 31, 2], [9, 17, 0, 28]]


def collected() -> Features:
    with goflat.collect():
        return job(RAGGED, (256, 7, 7))


def mixed() -> Features:
    """Return a job some of whose outputs lie in place, one of them unmoved."""
    made = parts([[*line, 0] for line in RAGGED], (256, 7, 7), order=3)
    apart = job([[90, 5, 0, 41, 60], [0, 33, 27, 80, 0]], (256, 7, 7))
    return made | {f"apart {key}": line for key, line in apart.items()}


MAKERS: dict[str, Callable[[], Features]] = {
    "parts": lambda: parts(RAGGED, (256, 7, 7), order=2),
    "segments": lambda: job([[50] * 4] * 4, (256, 7, 7)),
    "ragged segments": lambda: job(RAGGED, (256, 7, 7)),
    "collected": collected,
    "mixed": mixed,
}


def left_in(features: Features) -> dict[tuple[str, int], Tensor]:
    lines = features.items()
    return {(k, b): t for k, line in lines for b, t in enumerate(line) if t is not None}


def assert_apart(tensors: list[Tensor]) -> None:
    """Assert that no two share a byte."""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.numel())
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("name", ["bridge_RunStep", "bridge_SetBase", "bridge_Changed"])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_failure_at_every_step(
    cuda: None, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(_native._core, name)
    for number in range(1, 100):
        fresh()
        features = MAKERS[kind]()
        want = oracle(features)
        before = {place: t.clone() for place, t in left_in(features).items()}
        calls = [0]

        def fail(*args: Any, calls: list[int] = calls, number: int = number) -> Any:
            calls[0] += 1
            if calls[0] == number:
                raise RuntimeError("OOM|-1|-1|nothing|some memory: a test does not let allocate")
            return real(*args)

        monkeypatch.setattr(_native._core, name, fail)
        try:
            check_bits(goflat.flatten_(features, max_growth=LOTS), want)
        except goflat.OutOfMemoryError as error:
            outputs = error.outputs  # type: ignore[attr-defined]
        else:
            return
        wait()
        kept = left_in(features)
        done = [(b, out) for b, out in enumerate(outputs) if out is not None]
        assert_apart([*kept.values(), *(out for _, out in done)])
        check_bits([out for _, out in done], [want[b] for b, _ in done])
        for place, t in kept.items():
            assert torch.equal(raw(t), raw(before[place])), place
    raise AssertionError("a call went on failing")


GRABS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda t: t,
    "data": lambda t: t.data,
    "detached": lambda t: t.detach(),
    "view": lambda t: t[:],
    "storage": lambda t: t.untyped_storage(),
    "set_": lambda t: torch.empty(0, device=t.device).set_(t),
    "DLPack twin": lambda t: torch.from_dlpack(t),
    "saved for backward": lambda t: torch.ones_like(t).requires_grad_() * t,
}


@pytest.mark.parametrize("grab", GRABS)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_profiler_that_gets_hold_at_the_last_moment(kind: str, grab: str) -> None:
    features = MAKERS[kind]()
    before = {place: t.clone() for place, t in left_in(features).items()}
    entries = {place: weakref.ref(t) for place, t in left_in(features).items() if t.numel()}
    in_place = goflat.plan(features, inplace=True).in_place
    got: list[tuple[tuple[str, int], Any]] = []

    def hook(frame: Any, event: str, function: Any) -> None:
        name = getattr(function, "__name__", "")
        if event == "c_call" and name in ("bridge_RunStep", "bridge_Changed") and not got:
            sys.setprofile(None)
            found = [(place, entry()) for place, entry in entries.items()]
            got.extend((place, GRABS[grab](t)) for place, t in found if t is not None)

    sys.setprofile(hook)
    try:
        goflat.flatten_(features, max_growth=LOTS)
        refused = False
    except goflat.OwnershipError:
        refused = True
    finally:
        sys.setprofile(None)
    assert got
    assert refused or not in_place
    seen = [(place, t) for place, t in got if isinstance(t, torch.Tensor) and t.grad_fn is None]
    for place, t in [*seen, *left_in(features).items()]:
        assert torch.equal(t.clone().view(torch.int32), before[place].view(torch.int32)), place


def test_what_is_found_here_is_found() -> None:
    """The search for shared bytes is right about them."""
    whole = bits((8, 4))
    assert_apart([whole[:4], whole[4:], whole[2:2]])
    with pytest.raises(AssertionError):
        assert_apart([whole[:4], whole[3:]])
