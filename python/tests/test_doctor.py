"""The doctor: healthy where goflat works, and a finding for each thing that can be wrong."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import goflat
from goflat import __main__, _api, _doctor, _native
from helpers import child

CHECKS = ("flatten torch", "flatten numpy", "forked child")


@pytest.mark.usefixtures("engine")
def test_healthy() -> None:
    findings = _doctor.examine()
    assert [findings[check]["text"] for check in CHECKS] == ["right, bit for bit"] * 3
    assert findings["healthy"] is _native.available()
    assert findings["goflat"]["file"] == goflat.__file__


def test_report_has_a_line_for_each_finding() -> None:
    findings = _doctor.examine()
    lines = _doctor.report(findings).splitlines()
    names = [name for name, fact in findings.items() if isinstance(fact, dict)]
    assert [line[: len(name)] for name, line in zip(names, lines, strict=False)] == names


def test_progress_names_every_probe() -> None:
    said: list[str] = []
    findings = _doctor.examine(step=lambda name, share: said.append(name))
    assert said == [name for name, fact in findings.items() if isinstance(fact, dict)]


def test_json_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    code = __main__.main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)
    assert code == (0 if findings["healthy"] else 1)
    assert findings["torch"]["threads"] >= 1
    assert {"version", "libc", "system"} <= findings["python"].keys()


def test_says_which_way_tensors_take() -> None:
    torch = _doctor.examine()["torch"]
    if _native.available():
        assert _doctor._TORCH_PATHS[torch["self_test"]] in torch["text"]
    else:
        assert torch["self_test"] is None


def test_cuda_is_not_started_unless_asked() -> None:
    child.run("""
        import torch
        from goflat import _doctor
        _doctor.examine()
        assert not torch.cuda.is_initialized()
    """)


def test_a_gpu_that_is_asked_for_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor, "_devices", lambda torch: [])
    findings = _doctor.examine(gpu=True)
    assert not findings["healthy"]
    assert "CUDA was asked for" in findings["cuda"]["problem"]


# ---- what can be wrong ----


def problems(capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert __main__.main(["doctor", "--json"]) == 1
    found: list[str] = json.loads(capsys.readouterr().out)["problems"]
    return found


def test_wrong_values(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = _api.flatten
    monkeypatch.setattr(_api, "flatten", lambda features: [t * 0 for t in right(features)])
    found = problems(capsys)
    assert any("flatten of torch on cpu gave wrong values" in text for text in found)
    assert any("flatten of numpy on cpu gave wrong values" in text for text in found)
    assert any("a forked child ended with exit code 2" in text for text in found)


def test_a_forked_child_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor, "FORK_S", 0.2)
    monkeypatch.setattr(_doctor, "_in_child", lambda: time.sleep(60))
    assert "hung for 0.2 s" in _doctor.examine()["forked child"]["problem"]


def test_an_extension_that_does_not_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_native, "_core", None)
    monkeypatch.setattr(_native, "reason", "no such symbol")
    assert any("no such symbol; same results" in text for text in problems(capsys))


def test_a_probe_that_breaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Any:
        raise OSError("libtorch.so: no such file")

    monkeypatch.setattr(_doctor, "_torch", broken)
    assert "torch: OSError: libtorch.so: no such file" in problems(capsys)


def test_nothing_to_flatten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _doctor.find_spec
    missing = ("torch", "numpy")
    monkeypatch.setattr(_doctor, "find_spec", lambda name: None if name in missing else found(name))
    assert any("nothing to flatten" in text for text in problems(capsys))
    assert "skipped" in _doctor.examine()["forked child"]["text"]


def test_no_extension_for_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "_core", None)
    monkeypatch.setattr(_doctor, "find_spec", lambda name: None)
    assert "none is built for Python 3." in _doctor.extension()["text"]


@pytest.mark.skipif(not _native.available(), reason="the native extension is not built")
def test_a_forked_process_says_so() -> None:
    child.run(
        """
        import os, sys
        from goflat import _doctor
        pid = os.fork()
        if not pid:
            os._exit("was forked" not in _doctor.extension()["problem"])
        assert os.waitpid(pid, 0)[1] == 0
    """,
        "-Wignore::DeprecationWarning",  # Python 3.12 on: this process has threads
    )
