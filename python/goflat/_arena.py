"""Outputs that exist before their rows do: producers write where the rows are to lie."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn

from . import _tracing
from ._errors import make, type_name
from ._features import Features
from ._flat import make as make_flat
from ._kinds import arrays_of, kind_of, refuse
from ._layout import device_of, dtype_name
from ._overlap import overlap
from ._slots import Slots, build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._flat import Flat
    from ._kinds import Arrays
    from ._layout import Layout


class Arena(Mapping[Any, Slots]):
    """One output per batch, made beforehand, with a slot for each key's rows in it.

    A mapping from key to the slots of its batches, in the order of `Layout.keys`:
    ``arena[key][b]`` is where that key's rows of ``arena.flat[b]`` lie. Producers write there, so
    that nothing is left to copy.

    Parameters
    ----------
    layout : Layout
        What the entries will look like: ``Layout.of(features)`` of an earlier step, or one made by
        hand. Its dtype tells the framework: tensors for a torch dtype, else ndarrays; CuPy arrays
        where devices are CuPy's.

    Raises
    ------
    ShapeError
        If the parts of `layout` contradict one another.
    DTypeError
        If `layout` is not a Layout, or its dtype is none.
    DeviceError
        If a device has no memory to write to, or is not one of the framework's.
    OutOfMemoryError
        If there is no memory for the outputs; those made before are free again.

    Notes
    -----
    Memory grows by the sum of the outputs when the arena is made, and by 0 ever after. Contents
    are undefined until written.

    Slots are views of the outputs, contiguous along dim 0, strided along any other: an operation
    that cannot write to strided memory makes a temporary for itself. A slot without rows is an
    array of its own, lest an operation that resizes its ``out=`` reach its neighbours. The slots
    of a key are a tuple: write into them (``arena[key][b][...] = rows``), none can be exchanged.

    The next step may write into the same arena: **that overwrites the outputs of the step before**,
    wherever they are held. Another layout needs another arena. Addresses never change, so CUDA
    graphs may be captured over it.

    Autograd does not see what is written: torch refuses ``out=`` and writing by index where that
    would need a gradient, `put` raises OwnershipError. Use `flatten` where gradients are wanted, or
    ``torch.no_grad()`` where they are not. Outputs that autograd saved for a backward pass count
    as changed once a slot is written.

    Threads may write to different slots at the same time. Work on several streams is ordered by
    the caller, as for any tensor. Arenas compare by identity, and neither pickle nor copy.

    Examples
    --------
    >>> import torch, goflat
    >>> layout = goflat.Layout.of({"p2": [torch.zeros(2, 3)], "p3": [torch.zeros(1, 3)]})
    >>> arena = goflat.Arena(layout)
    >>> arena
    Arena(2 keys x 1 batches, 3 rows of (3,), torch.float32 on cpu, dim=0)
    >>> _ = torch.add(torch.ones(2, 3), 1, out=arena["p2"][0])
    >>> arena["p3"][0][:] = 5
    >>> arena.flat[0]
    tensor([[2., 2., 2.],
            [2., 2., 2.],
            [5., 5., 5.]])
    """

    @_tracing.breaks_graph
    def __init__(self, layout: Layout) -> None:
        if _tracing.by_dynamo():
            _tracing.outside(Arena.__init__, self, layout)
            return
        self._outs, self._slots, self._layout = build(layout)
        self._each = [slot for line in self._slots.values() for slot in line]
        self._shapes = [tuple(slot.shape) for slot in self._each]

    @property
    def layout(self) -> Layout:
        """Layout of the slots, with the devices that the outputs really lie on."""
        return self._layout

    @property
    @_tracing.breaks_graph
    def flat(self) -> Flat[Any]:
        """The outputs: the same arrays each time, in a new list.

        Returns
        -------
        Flat
            One array per batch, shape ``(sum of rows, *row_shape)``, on the batch's device. They
            *are* the memory behind the slots: what is written to a slot later shows in them.

        Raises
        ------
        ShapeError
            If an operation has resized a slot, as torch's do with an ``out=`` of the wrong shape.
            The rows of other slots may then be overwritten; such an arena is of no more use.

        Notes
        -----
        Moves no bytes, allocates none. Looks at the shape of each slot, which takes 0.2 µs.

        Examples
        --------
        >>> import torch, goflat
        >>> arena = goflat.Arena(goflat.Layout.of({"a": [torch.zeros(1, 2)]}))
        >>> before = arena.flat[0]
        >>> arena["a"][0].fill_(7)
        tensor([[7., 7.]])
        >>> before, arena.flat[0] is before
        (tensor([[7., 7.]]), True)
        """
        if _tracing.by_dynamo():
            return _tracing.outside(Arena.flat.fget, self)  # type: ignore[no-any-return, attr-defined]
        shapes = [slot.shape for slot in self._each]
        if shapes != self._shapes:
            raise self._resized(shapes)
        flat = make_flat(self._outs, self._layout)
        flat._made = "arena"
        return flat

    @_tracing.breaks_graph
    def put(self, key: Any, batch: int, array: Any) -> None:
        """Copy an array into a slot.

        Parameters
        ----------
        key : Hashable
            A key of the layout.
        batch : int
            Which batch; negative numbers count from the end.
        array : array
            Of the slot's framework, shape, dtype and device; of any strides. One of shape (0,)
            will do for a slot without rows, as with `flatten`. It is read, and not held.

        Raises
        ------
        KeyError, IndexError
            If there is no such key or batch.
        ShapeError, DTypeError, DeviceError
            If `array` does not fit the slot. Nothing is converted, moved or broadcast.
        OwnershipError
            If autograd is on and `array` requires grad, which the arena would lose.
        OverlapError
            If `array` shares memory with the slot, or is the slot: then its rows are there already.

        Notes
        -----
        Reads and writes each byte of `array` once, on the current stream; memory grows by 0. All
        is checked before the first byte is written.

        Examples
        --------
        >>> import torch, goflat
        >>> arena = goflat.Arena(goflat.Layout.of({"a": [torch.zeros(1, 2)]}))
        >>> arena.put("a", 0, torch.ones(1, 2))
        >>> arena.flat[0]
        tensor([[1., 1.]])
        >>> arena.put("a", 0, torch.ones(3, 2))
        Traceback (most recent call last):
            ...
        goflat._errors.ShapeError: key 'a', batch 0: got (3, 2), want (1, 2)
        """
        if _tracing.by_dynamo():
            _tracing.outside(Arena.put, self, key, batch, array)
            return
        slots = self[key]
        slot = slots[index(batch)]
        place = key, range(len(slots))[batch]
        arrays = _fitting(array, slot, place, self._layout.dim)
        arrays.concat([array], self._layout.dim, slot, tuple(slot.shape))

    @_tracing.breaks_graph
    def __getitem__(self, key: Any) -> Slots:
        """Return the slots of `key`, one per batch."""
        if _tracing.by_dynamo():
            return _tracing.outside(Arena.__getitem__, self, key)  # type: ignore[no-any-return]
        try:
            return self._slots[key]
        except KeyError:
            raise KeyError(f"no key {key!r}, there are {list(self._slots)}") from None

    def __iter__(self) -> Iterator[Any]:
        """Go through the keys, in the order in which their rows lie in an output."""
        return iter(self._slots)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._slots)

    __eq__ = object.__eq__  # a mapping's would ask tensors whether they are equal
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        """Say the size of the arena in one line."""
        return repr(self._layout).replace("Layout", "Arena", 1)

    def __reduce__(self) -> NoReturn:
        """Refuse: copies of slots would not lie in copies of outputs."""
        raise TypeError("an Arena cannot be pickled or copied: take its flat, or Arena(its layout)")

    def _resized(self, shapes: list[Any]) -> Exception:
        pairs = enumerate(zip(shapes, self._shapes, strict=True))
        e, (got, want) = next((e, pair) for e, pair in pairs if pair[0] != pair[1])
        place = Features(self._layout.keys, self._layout.batches, self._each).place(e)
        return make("SHAPE", *place, f"a slot that was resized to {tuple(got)}", str(want))


def _fitting(array: Any, slot: Any, place: tuple[Any, int], dim: int) -> Arrays:
    """Return how to copy `array` into `slot`, or raise for what does not fit there."""
    if kind_of(type(array)) != kind_of(type(slot)):
        raise make("DTYPE", *place, type_name(array), type_name(slot))
    arrays = arrays_of(Features(place[:1], 1, [array]))
    refuse(arrays, [array], lambda _: place)
    got, want = tuple(array.shape), tuple(slot.shape)
    if got != want and not (got == (0,) and want[dim] == 0):
        raise make("SHAPE", *place, str(got), str(want))
    if array.dtype != slot.dtype:
        raise make("DTYPE", *place, dtype_name(array.dtype), dtype_name(slot.dtype))
    if device_of(array) != device_of(slot):
        raise make("DEVICE", *place, str(device_of(array)), str(device_of(slot)))
    for what, watched in ("an array", array), ("a slot of an output", slot):
        if arrays.differentiable(watched):
            raise make("OWNER", *place, f"{what} that requires grad", "no_grad(), or flatten")
    view = arrays.view(array)
    if 0 in view.shape and 0 not in got:  # a wrapper, or what a tracer made
        raise make("DTYPE", *place, f"{type_name(array)} without memory", "a plain array")
    if overlap(view, arrays.view(slot)):
        raise make("OVERLAP", *place, "bytes shared with the slot", "an array apart from it")
    return arrays
