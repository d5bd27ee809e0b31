"""What the numbers should be, as data, and whether a run's are."""

from __future__ import annotations

from typing import Any

DEVICE = {  # device time over memcpy with a cold cache, at most
    "seed": 1.10,
    "uniform": 1.02,
    "ragged": 1.02,
    "short rows": 1.05,
    "odd rows": 1.25,
    "huge and tiny": 1.05,
}
# By device and contract: the best other way's wall time over goflat's, at least.
WALL: dict[str, dict[str, dict[str, float]]] = {
    "cuda": {
        "separate": {"seed": 1.5, "many small": 5, "square": 3.5, "many keys": 5},
        "packed": {"seed": 1, "many small": 5, "square": 2, "many keys": 5},
        "same again": {"seed": 1, "many small": 1.3, "square": 1.2, "many keys": 1.3},
    },
    "cpu": {
        "separate": {"seed": 1.1, "many small": 3, "many keys": 1.5, "30,000 arrays": 1 / 1.2},
    },
}
OVERHEAD_S = {"cuda": 1e-6, "cpu": 0.6e-6}  # over the loop, of two tiny tensors
FRESH = 1.15  # wall time of layouts that change over that of one


def goals(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the goals that a run has numbers for."""
    device = "cuda" if "device" in run else "cpu"
    return [*_device(run), *_wall(run, device), *_overhead(run, device), *_fresh(run)]


def _goal(name: str, got: float, want: float, *, least: bool = False) -> dict[str, Any]:
    met = got >= want if least else got <= want
    return {"name": name, "got": got, "want": want, "least": least, "met": met}


def _device(run: dict[str, Any]) -> list[dict[str, Any]]:
    jobs = {job["name"]: job["cold"] for job in run.get("device", ()) if "cold" in job}
    return [
        _goal(f"device / memcpy, {name}", _times(jobs[name]["goflat"], jobs[name]["memcpy"]), want)
        for name, want in DEVICE.items()
        if name in jobs
    ]


def _wall(run: dict[str, Any], device: str) -> list[dict[str, Any]]:
    cases = {case["name"]: case["ratios"] for case in run["cases"]}
    return [
        _goal(f"wall, {contract}, {name}", cases[name][contract]["ratio"], want, least=True)
        for contract, wants in WALL[device].items()
        for name, want in wants.items()
        if contract in cases.get(name, ())
    ]


def _overhead(run: dict[str, Any], device: str) -> list[dict[str, Any]]:
    return [
        _goal(f"{extra['name']}, µs", extra["seconds"] * 1e6, OVERHEAD_S[device] * 1e6)
        for extra in run["extras"]
        if extra["name"].startswith("goflat minus loop")
    ]


def _fresh(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        _goal(
            f"{job['name']}, over the same layout",
            _times(ways["goflat fresh"], ways["goflat"]),
            FRESH,
        )
        for job in run.get("fresh", ())
        for ways in [job["ways"]]
    ]


def _times(of: dict[str, Any], over: dict[str, Any]) -> float:
    found: float = of["median_s"] / over["median_s"]
    return found
