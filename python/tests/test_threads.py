"""Calls from many threads at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import goflat
from helpers.compare import assert_all_bits
from helpers.jobs import job, numpy_job, oracle, ragged

pytestmark = pytest.mark.usefixtures("engine")


def test_32_threads() -> None:
    start = threading.Barrier(32)

    def work(number: int) -> int:
        features = job([[number % 5, 3], [1, number % 7]], row_shape=(number % 4 + 1,))
        want = oracle(features)
        start.wait()
        for _ in range(100):
            assert_all_bits(goflat.flatten(features), want)
            goflat.flatten(features, packed=True)
            with pytest.raises(goflat.Error):
                goflat.flatten(features | {"x": [None, None]})
        assert_all_bits(goflat.flatten(numpy_job(features)), [t.numpy() for t in want])
        return number

    with ThreadPoolExecutor(32) as pool:
        assert sorted(pool.map(work, range(32))) == list(range(32))


def test_threads_share_one_job() -> None:
    features = job([[40, 60], [70, 30]], row_shape=(64, 64))  # 3 MiB: other threads get their turn
    want = oracle(features)
    with ThreadPoolExecutor(8) as pool:
        for flat in pool.map(lambda _: goflat.flatten(features), range(40)):
            assert_all_bits(flat, want)


def test_first_call_of_a_thread_that_ends() -> None:
    results: list[goflat.Flat[torch.Tensor]] = []
    for _ in range(50):
        thread = threading.Thread(target=lambda: results.append(goflat.flatten(ragged())))
        thread.start()
        thread.join()
    for flat in results:
        assert_all_bits(flat, oracle(ragged()))


def test_layout_is_built_once_for_all_threads() -> None:
    flat = goflat.flatten(ragged())
    with ThreadPoolExecutor(8) as pool:
        layouts = list(pool.map(lambda _: flat.layout, range(64)))
    assert all(layout == goflat.Layout.of(ragged()) for layout in layouts)
