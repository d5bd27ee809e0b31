"""Forked children: right results, and nothing hangs.

Every test runs in a process of its own with a time limit, so that a hang is a failure.
"""

from __future__ import annotations

import pytest

from helpers import child, engines

FORK = """
import gc, os, sys, traceback, warnings
import torch, goflat

warnings.simplefilter("ignore", DeprecationWarning)
warnings.filterwarnings("ignore", "goflat runs in pure Python")
torch.set_num_threads(1)  # OpenMP's own threads do not survive a fork either

features = {"a": [torch.full((2, 3), 1.0), torch.zeros(0, 3)], "b": [torch.ones(1, 3)] * 2}

def works():
    for _ in range(20):
        flat = goflat.flatten(features)
        assert torch.equal(flat[0], torch.cat([features["a"][0], features["b"][0]]))
        assert goflat.flatten(features, packed=True).buffer.shape == (4, 3)
        assert flat.layout.batches == 2
        try:
            goflat.flatten({"a": [3]})
        except goflat.DTypeError:
            pass

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            gc.collect()
            code = 0
        except BaseException:
            traceback.print_exc()
            code = 1
        os._exit(code)
    return os.waitpid(pid, 0)[1]
"""


@pytest.fixture(params=engines.NAMES)
def engine(request: pytest.FixtureRequest) -> str:
    if engines.engine(request.param) is None:
        pytest.skip("the native extension is not built")
    return str(request.param)


def run(code: str, engine: str) -> str:
    output = child.fork(FORK + code, engine=engine)
    assert output == ""
    return output


def test_fork_after_use(engine: str) -> None:
    run("works()\nassert in_child(works) == 0\nworks()", engine)


def test_fork_after_import_only(engine: str) -> None:
    run("assert in_child(works) == 0\nworks()", engine)


def test_fork_of_a_fork(engine: str) -> None:
    code = """
works()
def nested():
    works()
    assert in_child(works) == 0
assert in_child(nested) == 0
works()
"""
    run(code, engine)


def test_results_of_the_parent_in_the_child(engine: str) -> None:
    code = """
flat = goflat.flatten(features)
def look():
    assert torch.equal(flat[0], torch.cat([features["a"][0], features["b"][0]]))
    assert flat.layout.rows["a"] == (2, 0)
    flat.unflatten()
    del flat[:]
    gc.collect()
assert in_child(look) == 0
assert len(flat) == 2
"""
    run(code, engine)


def test_a_bound_plan_in_the_child(engine: str) -> None:
    code = """
bound = goflat.plan(features).bind(features)
def call():
    features["b"][0].fill_(5)
    for _ in range(20):
        assert torch.equal(bound()[0], torch.cat([features["a"][0], features["b"][0]]))
assert in_child(call) == 0
call()
"""
    run(code, engine)


def test_garbage_of_the_parent_collected_in_the_child(engine: str) -> None:
    code = """
class Knot: pass
knot = Knot()
knot.self, knot.flat = knot, goflat.flatten(features, packed=True)
gc.disable()
del knot
assert in_child(gc.collect) == 0
"""
    run(code, engine)


def test_fork_while_other_threads_work(engine: str) -> None:
    code = """
import threading
stop = threading.Event()
def busy():
    while not stop.is_set():
        goflat.flatten(features)
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads: thread.start()
works()
for _ in range(3):
    assert in_child(works) == 0
stop.set()
for thread in threads: thread.join()
"""
    run(code, engine)


def test_child_that_exits_the_usual_way(engine: str) -> None:
    code = """
works()
pid = os.fork()
works()
if pid == 0:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    child.run(FORK + code, engine=engine)


def test_multiprocessing_pool(engine: str) -> None:
    code = """
import multiprocessing
from helpers.datasets import total
works()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(total, range(8)) == [2.0 * n + 1 for n in range(8)]
"""
    run(code, engine)


def test_data_loader_workers(engine: str) -> None:
    code = """
from helpers.datasets import Flattened, check
works()
loader = torch.utils.data.DataLoader(
    Flattened(), batch_size=None, num_workers=2, multiprocessing_context="fork"
)
check(loader)
"""
    run(code, engine)


def test_errors_reach_the_parent_of_a_worker(engine: str) -> None:
    code = """
class Broken(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, i): return goflat.cat([torch.zeros(2, 3), torch.zeros(2, 4)])
works()
try:
    list(torch.utils.data.DataLoader(Broken(), batch_size=None, num_workers=1))
except goflat.ShapeError as error:
    assert "got (2, 4), want (*, 3)" in str(error)
else:
    raise AssertionError("no error")
"""
    run(code, engine)
