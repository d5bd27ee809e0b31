"""Goals are judged, and name what there is."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def test_goals_are_judged() -> None:
    def ways(**seconds: float) -> dict[str, Any]:
        return {name.replace("_", " "): {"median_s": s} for name, s in seconds.items()}

    run = {
        "device": [
            {"name": "seed", "cold": ways(goflat=1.05, memcpy=1.0)},
            {"name": "short rows", "cold": ways(goflat=1.2, memcpy=1.0)},
            {"name": "uniform", "skipped": "too large"},
            {"name": "anchors", "cold": ways(goflat=9.0, memcpy=1.0)},  # nothing is wanted of it
        ],
        "cases": [
            {"name": "seed", "ratios": {"separate": {"ratio": 1.6}, "packed": {"ratio": 0.5}}}
        ],
        "extras": [{"name": "goflat minus loop, tiny", "seconds": 2e-6}],
        "fresh": [{"name": "seed, fresh", "ways": ways(goflat=1.0, goflat_fresh=1.1)}],
    }
    found = import_module("benchmarks.goals").goals(run)
    assert {goal["name"]: goal["met"] for goal in found} == {
        "device / memcpy, seed": True,
        "device / memcpy, short rows": False,
        "wall, separate, seed": True,
        "wall, packed, seed": False,
        "goflat minus loop, tiny, µs": False,
        "seed, fresh, over the same layout": True,
    }
    assert import_module("benchmarks.report")._goals(found)[-1] == "3 of 6 goals met"


def test_goals_name_jobs_that_there_are() -> None:
    cases = {case.name for case in import_module("benchmarks.cases").CASES}
    jobs = {job.name for job in import_module("benchmarks.workloads").JOBS}
    goals = import_module("benchmarks.goals")
    assert goals.DEVICE.keys() <= jobs
    assert all(wants.keys() <= cases for of in goals.WALL.values() for wants in of.values())


def test_boxes_and_sequences_add_up() -> None:
    workloads = import_module("benchmarks.workloads")
    assert sum(workloads.levels(1000, 0)) == 1000
    assert min(workloads.levels(1000, 0)) > 0
    slots = workloads.sequences(100, 50, 400)
    assert sum(n > 0 for slot in slots for n in slot) == 100
    assert all(0 < sum(batch) <= 400 for batch in zip(*slots, strict=True))


def test_the_worst_cases_are_there() -> None:
    cases = {case.title for case in import_module("benchmarks.cases").CASES}
    assert {"4x4x(50,256,7,7) torch", "2x1x(4,64) torch", "30000x1x(2,16) numpy"} <= cases
