"""Whether goflat was installed without the extension on purpose: nobody is to be warned then."""

from __future__ import annotations

WHY = "this is the pure-Python wheel, for systems without a wheel of their own"


def wheel() -> bool:
    """Report whether the installed wheel is the one for any system, as its metadata say.

    Asked only where the extension is not there: importing `importlib.metadata` takes 10 ms.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        about = distribution("goflat").read_text("WHEEL")
    except PackageNotFoundError:
        return False
    return "Root-Is-Purelib: true" in (about or "")
