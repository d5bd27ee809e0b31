"""What importing and using goflat does to the process, and what it leaves alone."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

import goflat
from helpers import child, engines

QUIET = ("-W", "ignore:goflat runs in pure Python")


@pytest.fixture(params=engines.NAMES)
def engine(request: pytest.FixtureRequest) -> str:
    if engines.engine(request.param) is None:
        pytest.skip("the native extension is not built")
    return str(request.param)


def test_import_takes_less_than_50_ms_after_torch() -> None:
    code = """
    import time, warnings
    warnings.simplefilter("ignore")
    start = time.process_time()
    import goflat
    print(time.process_time() - start)
    """
    assert min(float(child.fork(code)) for _ in range(3)) < 0.05


def test_import_brings_neither_torch_nor_numpy() -> None:
    code = """
    import sys, goflat
    assert not {"torch", "numpy"} & set(sys.modules)
    """
    child.run(code, *QUIET)


def test_without_the_extension_one_warning_says_why() -> None:
    code = """
    import sys, warnings
    sys.modules["goflat._core"] = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import numpy as np, goflat
        for _ in range(3):
            assert goflat.flatten({"a": [np.ones(2)], "b": [np.ones(1)]})[0].shape == (3,)
    (warning,) = caught
    assert "pure Python" in str(warning.message)
    assert "_core" in str(warning.message)
    """
    child.run(code)


def test_cuda_is_untouched_by_import_and_by_cpu_calls(engine: str) -> None:
    code = """
    import torch, goflat
    goflat.flatten({"a": [torch.ones(3)]}, packed=True)
    goflat.flatten({"a": [torch.ones(3).numpy()]})
    assert not torch.cuda.is_initialized()
    assert "libcuda.so" not in open("/proc/self/maps").read()
    """
    assert child.fork(code, engine=engine) == ""


def test_denormals_are_kept(engine: str) -> None:
    code = """
    import numpy as np, torch, goflat
    tiny = np.array([5e-324, 1e-310])
    goflat.flatten({"a": [tiny]})
    assert (tiny * 1.0 == tiny).all() and (tiny / 2 * 2)[1] > 0
    assert float(torch.tensor(1e-310, dtype=torch.float64) * 1.5) > 1e-310
    assert 5e-324 * 1.0 > 0
    """
    assert child.fork(code, engine=engine) == ""


def test_the_rest_of_the_process_is_left_alone(engine: str) -> None:
    """Environment, locale, random generators, the folder; and nothing is printed or logged."""
    code = f"""
    import locale, logging, os, random, torch
    def known():
        return (
            dict(os.environ), os.getcwd(), locale.setlocale(locale.LC_ALL), random.getstate(),
            torch.get_rng_state().tolist(), torch.get_num_threads(), torch.is_grad_enabled(),
            sorted(name for name in logging.root.manager.loggerDict if "goflat" in name),
        )
    before = known()
    from helpers import engines
    engines.use({engine!r})
    import goflat
    def job():
        long, short = torch.ones(9000, 4), torch.ones(2, 4)
        return {{"a": [long, short], "b": [torch.ones(1, 4), torch.ones(1, 4)]}}
    goflat.flatten(job())
    goflat.flatten_({{"a": [torch.ones(3)], "b": [torch.ones(2)]}}, max_growth=1000)
    goflat.plan(job(), inplace=True)
    try:
        goflat.flatten({{"a": [3]}})
    except goflat.DTypeError:
        pass
    assert known() == before
    """
    assert child.fork(code) == ""


def test_signal_handlers_and_faulthandler_are_kept(engine: str) -> None:
    code = f"""
    import faulthandler, signal, sys, torch
    assert "goflat" not in sys.modules
    def known():
        return [signal.getsignal(s) for s in signal.valid_signals()], faulthandler.is_enabled()
    before = known()
    import goflat
    from helpers import engines
    engines.use({engine!r})
    goflat.flatten({{"a": [torch.ones(3)]}})
    assert known() == before
    hits = []
    signal.signal(signal.SIGUSR1, lambda *_: hits.append(1))
    signal.raise_signal(signal.SIGUSR1)
    goflat.flatten({{"a": [torch.ones(3)]}})
    assert hits == [1]
    """
    assert child.fork(code) == ""


def test_faulthandler_still_reports_a_crash(engine: str) -> None:
    code = """
    import ctypes, faulthandler, torch, goflat
    faulthandler.enable()
    goflat.flatten({"a": [torch.ones(3)]})
    ctypes.string_at(0)
    """
    output = child.fork(code, engine=engine, status=-signal.SIGSEGV)
    assert "Segmentation fault" in output
    assert "string_at" in output


def test_ctrl_c_interrupts_and_leaves_goflat_usable(engine: str) -> None:
    code = """
    import os, signal, threading, torch, goflat
    signal.signal(signal.SIGINT, signal.default_int_handler)
    features = {"a": [torch.ones(2000, 1000)], "b": [torch.ones(2000, 1000)]}  # 16 MB a call
    goflat.flatten(features)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            goflat.flatten(features)
    except KeyboardInterrupt:
        assert goflat.flatten(features)[0].shape == (4000, 1000)
        print("interrupted")
    """
    assert child.fork(code, engine=engine) == "interrupted\n"


def test_outputs_in_module_globals_at_exit_in_dev_mode(engine: str) -> None:
    code = """
    import numpy as np, torch, goflat
    features = {"a": [torch.ones(3)], "b": [torch.ones(2, requires_grad=True)]}
    flat = goflat.flatten(features)
    packed = goflat.flatten({"a": [torch.ones(3)]}, packed=True)
    arrays = goflat.flatten({"a": [np.ones(3)]}, packed=True)
    layout, offsets, parts = flat.layout, flat.offsets(0), flat.unflatten()
    """
    child.run(code, "-X", "dev", "-W", "ignore", engine=engine)


def test_calls_in_a_daemon_thread_at_exit(engine: str) -> None:
    # with NumPy: torch.cat alone aborts the interpreter there ("terminate called without ...")
    code = """
    import threading, numpy as np, goflat
    features = {"a": [np.ones((30, 30))] * 4}
    def forever():
        while True:
            goflat.flatten(features)
    thread = threading.Thread(target=forever, daemon=True)
    thread.start()
    for _ in range(100):
        goflat.flatten(features)
    """
    child.run(code, engine=engine)


def test_immediate_binding_of_symbols(engine: str) -> None:
    code = """
    import numpy as np, goflat
    assert goflat.flatten({"a": [np.ones(3)]})[0].shape == (3,)
    """
    child.run(code, engine=engine, env={"LD_BIND_NOW": "1"})


def test_the_version_is_said_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", goflat.__version__)
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'version = { attr = "goflat._version.__version__" }' in project
    assert not re.search(r'(?m)^version = "', project)
