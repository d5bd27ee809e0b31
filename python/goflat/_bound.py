"""Plans bound to memory: the same job again and again, for loops and CUDA graphs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import _api, _native, _tracing
from ._errors import make, type_name
from ._features import read
from ._kinds import kind_of

if TYPE_CHECKING:
    from ._features import Features
    from ._flat import Flat
    from ._plan import Plan


class Bound:
    """Rewrites the same outputs from the same storages at each call, and allocates nothing.

    Made by `Plan.bind`. It keeps the memory of the entries and of the outputs alive, through
    tensors of its own over their storages, so values that are written into the entries later are
    what a later call joins; other tensors that take an entry's place in its list are not. Storages
    must not be resized or lazily cloned meanwhile: both move memory.

    A call is ordered by the current stream of each device, waits for nothing and may be captured
    into a CUDA graph. It is not recorded by autograd; outputs count as changed in place.

    What has to be converted first (a `dtype`, but for floats on a GPU; entries with the conjugate
    or negative bit) and arrays of CuPy are joined by `flatten` into the outputs at each call, which
    may allocate for a while.

    Attributes
    ----------
    flat : Flat
        The outputs, the same object at each call.

    Examples
    --------
    >>> import torch, goflat
    >>> features = {"a": [torch.zeros(2)], "b": [torch.ones(1)]}
    >>> bound = goflat.plan(features).bind(features)
    >>> features["a"][0].fill_(5)
    tensor([5., 5.])
    >>> bound()
    [tensor([5., 5., 1.])]
    """

    __slots__ = (
        "__weakref__",
        "_call",
        "_counted",
        "_devices",
        "_entries",
        "_handle",
        "_outs",
        "flat",
    )

    def __init__(self, plan: Plan, features: Any, out: Any = None) -> None:
        self._handle = 0
        table = read(features)
        _refuse(table)
        self._entries = table._replace(grid=[_alias(entry) for entry in table.grid])
        self._call = {key: value for key, value in plan._call.items() if key in _OPTIONS}
        self.flat: Flat[Any] = plan(self._entries, out)
        self._outs = [self.flat.buffer] if self._packed else list(self.flat)
        self._counted = _with_versions([*self._outs, *self.flat] if self._packed else self._outs)
        self._devices = _cuda_devices(self._outs)
        if table.grid and all(map(_stays, self._entries.grid)):
            options = self._call.get("dim", 0), self._packed, self._call.get("dtype")
            self._handle = _native.bind(_native.as_dict(self._entries), self._outs, *options)

    @_tracing.breaks_graph
    def __call__(self) -> Flat[Any]:
        """Join the entries again, as they are now.

        Returns
        -------
        Flat
            `flat`: the same list of the same arrays.

        Raises
        ------
        DeviceError
            If a launch fails.
        """
        if _tracing.by_dynamo():
            return _tracing.outside(Bound.__call__, self)  # type: ignore[no-any-return]
        core = _native._core
        if not self._handle or core is None:
            self._join()
        elif self._devices is None:
            _run(core, self._handle, -1, 0)
        else:
            stream = sys.modules["torch"]._C._cuda_getCurrentRawStream
            for device in self._devices:
                _run(core, self._handle, device, stream(device))
        if self._counted:
            sys.modules["torch"].autograd.graph.increment_version(self._counted)
        return self.flat

    @property
    def _packed(self) -> bool:
        return bool(self._call.get("packed"))

    def _join(self) -> None:
        """Join without the extension: in a fork's child, of other frameworks, with a dtype."""
        entries: Any = self._entries
        out: Any = self._outs[0] if self._packed else self._outs
        if self._outs:
            _api.flatten(entries, out=out, **self._call)

    def __del__(self) -> None:
        """Forget how to run it."""
        if self._handle and _native._core is not None:
            _native._core.bridge_FreeBound(self._handle)


_OPTIONS = ("dim", "dtype", "packed")


def bind(plan: Plan, features: Any, out: Any) -> Bound:
    """Do the work of `Plan.bind`."""
    if plan._call.get("inplace"):
        want = "one that copies: a consuming plan lays outputs into the entries"
        raise make("DTYPE", None, None, "a consuming plan to bind", want)
    return Bound(plan, features, out)


def _refuse(table: Features) -> None:
    """Raise for arrays of libraries that cannot write into an array: what they give is new."""
    for e, entry in enumerate(table.grid):
        if kind_of(type(entry)) not in ("torch", "numpy", "cupy"):
            want = "an array of torch, NumPy or CuPy, to bind"
            raise make("DTYPE", *table.place(e), type_name(entry), want)


def _alias(entry: Any) -> Any:
    """Return an array of our own over the memory of `entry`, where its kind has such."""
    kind = kind_of(type(entry))
    if kind == "torch":
        alias = entry.detach()
        if type(alias) is sys.modules["torch"].Tensor and alias.is_cpu | alias.is_cuda:
            alias.data_ptr()  # a lazy clone gets memory of its own before its address is noted
        return alias
    return entry.view() if kind == "numpy" else entry


def _stays(entry: Any) -> bool:
    """Report whether what is read is the memory of `entry` itself, now and later.

    Of a conjugated tensor it is a copy that ends with the call.
    """
    kind = kind_of(type(entry))
    return kind == "numpy" or (kind == "torch" and not entry.is_conj() and not entry.is_neg())


def _with_versions(outs: list[Any]) -> list[Any]:
    """Return the tensors whose changes autograd counts; parts of a buffer count on their own."""
    tensors = [out for out in outs if kind_of(type(out)) == "torch"]
    return [out for out in tensors if not out.is_inference()]


def _cuda_devices(outs: list[Any]) -> list[int] | None:
    """Return the CUDA devices that outputs are on; None on the CPU."""
    if not outs or not getattr(outs[0], "is_cuda", False):
        return None
    return sorted({out.device.index for out in outs})


def _run(core: Any, handle: int, device: int, stream: int) -> None:
    try:
        core.bridge_RunBound(handle, device, stream)
    except RuntimeError as error:
        raise _native._error(str(error), (), 0) from None
