"""Streams: there are none on a CPU, but what is given for one is looked at everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from helpers import child
from helpers.compare import assert_all_bits
from helpers.consuming import apart, parts
from helpers.jobs import numpy_job, oracle

if TYPE_CHECKING:
    from collections.abc import Callable

LOTS = 1 << 40
ROWS = ((2, 1), (0, 4), (3, 2))

JOBS: dict[str, Callable[[], Any]] = {
    "in place": lambda: parts(ROWS),
    "streamed": lambda: apart(ROWS),
    "NumPy": lambda: numpy_job(apart(ROWS)),
    "empty": lambda: {},
}
NO_STREAMS = {"number": 7, "None": None, "text": "cuda:0", "device": torch.device("cpu")}


class Stream:
    """Stands in for a stream of torch where there is none."""

    cuda_stream = 0


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("what", NO_STREAMS)
def test_wait_for_what_is_no_stream(job: str, what: str) -> None:
    features = JOBS[job]()
    want = [] if job == "empty" else list(goflat.flatten(features))
    with pytest.raises(goflat.DTypeError, match=r"want a torch\.cuda\.Stream"):
        goflat.flatten_(features, max_growth=LOTS, wait=[NO_STREAMS[what]])
    got = list(goflat.flatten_(features, max_growth=LOTS))  # nothing has moved
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_wait_for_what_is_no_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    for wait, got in ((Stream(), "Stream"), (None, "None"), (3, "int")):
        with pytest.raises(goflat.DTypeError, match=f"got wait of type .*{got}"):
            goflat.flatten_(parts(ROWS), max_growth=0, wait=wait)  # type: ignore[arg-type]
        with pytest.raises(goflat.DTypeError, match=f"got wait of type .*{got}"):
            goflat.cat_([torch.ones(2)], wait=wait)  # type: ignore[arg-type]


def test_a_cpu_waits_for_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    for features in (parts(ROWS), apart(ROWS)):
        want = oracle(features)
        for wait in ([Stream()], (Stream(), Stream()), iter([Stream()]), ()):
            taken = {key: list(entries) for key, entries in features.items()}
            assert_all_bits(list(goflat.flatten_(taken, max_growth=LOTS, wait=wait)), want)


@pytest.mark.parametrize("what", NO_STREAMS)
def test_record_what_is_no_stream(what: str) -> None:
    for of in (torch.ones(2), [], np.ones(3), goflat.flatten({"a": [torch.ones(2)]})):
        with pytest.raises(goflat.DTypeError, match=r"want a torch\.cuda\.Stream"):
            goflat.record_stream(of, NO_STREAMS[what])


def test_a_cpu_records_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    goflat.record_stream([torch.ones(2), np.ones(3)], Stream())
    with pytest.raises(goflat.DTypeError, match="got object, want a tensor"):
        goflat.record_stream([torch.ones(2), object()], Stream())


# What speaks no more than the protocol of cuda.core


class Speaker:
    """An object with ``__cuda_stream__``."""

    def __init__(self, version: int = 0) -> None:
        self._version = version

    def __cuda_stream__(self) -> tuple[int, int]:
        return self._version, 0x7F00


@pytest.mark.parametrize("job", JOBS)
def test_streams_of_other_libraries_are_taken(job: str) -> None:
    features = JOBS[job]()
    want = [] if job == "empty" else list(goflat.flatten(features))
    got = list(goflat.flatten_(features, max_growth=LOTS, wait=[Speaker()]))
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    goflat.record_stream(got, Speaker())


def test_a_protocol_of_a_later_version_is_refused() -> None:
    features = parts(ROWS)
    with pytest.raises(goflat.DTypeError, match=r"__cuda_stream__ of version 1, want version 0"):
        goflat.flatten_(features, max_growth=0, wait=[Speaker(), Speaker(version=1)])
    with pytest.raises(goflat.DTypeError, match=r"__cuda_stream__ of version 1, want version 0"):
        goflat.record_stream(torch.ones(2), Speaker(version=1))
    assert len(goflat.flatten_(features, max_growth=0)) == 2  # nothing had moved


def test_neither_torch_nor_cupy_is_imported_for_a_stream() -> None:
    code = """
    import sys, numpy as np, goflat
    class Stream:
        def __cuda_stream__(self): return 0, 7
    flat = goflat.flatten_({"a": [np.ones(2)]}, max_growth=100, wait=[Stream()])
    goflat.record_stream(flat, Stream())
    assert not {"torch", "cupy"} & set(sys.modules)
    """
    child.run(code, "-W", "ignore::UserWarning:goflat")
