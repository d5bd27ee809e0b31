"""JAX arrays in, JAX arrays out: never written to, read in place, nothing compiled."""

from __future__ import annotations

import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import goflat
from helpers import child

jax = pytest.importorskip("jax")
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 3)

import jax.numpy as jnp  # noqa: E402

from helpers.jaxes import DTYPES, array, assert_same, job, oracle  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOTS = 1 << 40
on_each_engine = pytest.mark.usefixtures("engine")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return what asks JAX to join, which would compile a program."""
    calls: list[str] = []
    join = jnp.concatenate

    def counted(*args: Any, **options: Any) -> Any:
        calls.append("concatenate")
        return join(*args, **options)

    monkeypatch.setattr(jnp, "concatenate", counted)
    yield calls


# ---- values ----


@on_each_engine
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    assert_same(goflat.flatten(job(dtype)), oracle(job(dtype)))


@on_each_engine
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_dims(dim: int) -> None:
    features = job(row_shape=(2, 3), dim=dim % 3)
    assert_same(goflat.flatten(features, dim=dim), oracle(features, dim))


def test_bits_of_nan_are_kept() -> None:
    for word, dtype in (("uint32", jnp.float32), ("uint16", jnp.bfloat16)):
        bits = np.array([[0x7FA1, 0xFFC3, 0x7FFF]], word) << (16 if word == "uint32" else 0)
        entry = jax.lax.bitcast_convert_type(jnp.asarray(bits.astype(word)), dtype)
        (out,) = goflat.flatten({"a": [entry], "b": [entry]})
        assert np.asarray(out).tobytes() == bits.astype(word).tobytes() * 2


@on_each_engine
def test_legacy_empty_entries_are_skipped_as_with_torch() -> None:
    nothing = jnp.zeros(0)
    features = {"a": [nothing, array((2, 3))], "b": [array((1, 3)), nothing]}
    for packed in False, True:
        assert_same(goflat.flatten(features, packed=packed), [array((1, 3)), array((2, 3))])
        (out,) = goflat.flatten({"a": [nothing], "b": [nothing]}, packed=packed)
        assert_same([out], [nothing])


@on_each_engine
def test_both_forms_and_cat() -> None:
    features = job()
    batches = [{key: features[key][b] for key in features} for b in range(2)]
    assert_same(goflat.flatten(batches), oracle(features))
    parts = [features[key][1] for key in features]
    assert_same([goflat.cat(parts)], [jnp.concatenate(parts)])
    with pytest.raises(goflat.ShapeError, match=r"tensor 1: got \(2, 4\), want \(\*, 3\)"):
        goflat.cat([array((1, 3)), array((2, 4))])


@on_each_engine
@pytest.mark.parametrize("dim", [0, 1])
def test_packed(dim: int) -> None:
    features = job(row_shape=(16,), dim=dim)
    flat = goflat.flatten(features, dim=dim, packed=True)
    assert_same(flat, oracle(features, dim))
    assert_same([flat.buffer], [jnp.concatenate(list(flat), dim)])


@on_each_engine
def test_dtype() -> None:
    features = job("int32")
    for dtype in "bfloat16", jnp.bfloat16, np.dtype(jnp.bfloat16):
        assert_same(goflat.flatten(features, dtype=dtype), oracle(job("bfloat16")))
    mixed = {"a": [array((1, 3), "int8")], "b": [array((2, 3), "float16")]}
    with pytest.raises(goflat.DTypeError, match="key 'b', batch 0: got float16, want int8"):
        goflat.flatten(mixed)
    assert goflat.flatten(mixed, dtype="float32")[0].dtype == jnp.float32


def test_unflatten_and_layout() -> None:
    features = job("bfloat16")
    flat = goflat.flatten(features)
    for key, entries in flat.unflatten().items():
        assert_same(entries, features[key])
    layout = goflat.Layout.of(features)
    assert flat.layout == layout == pickle.loads(pickle.dumps(layout))
    assert layout.devices == ("cpu:0", "cpu:0")
    assert flat.offsets(1).tolist() == [0, 1, 5, 7]
    assert flat.plan.growth == 12 * 3 * 2


def test_entries_in_the_making() -> None:
    """JAX returns before it has computed: what is read is the result."""
    work = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: jnp.sin(y @ y.T @ y), x))
    entry = work(array((100, 100)) / 61)
    (flat,) = goflat.flatten({"a": [entry], "b": [entry]})
    assert_same([flat], [jnp.concatenate([entry, entry])])


# ---- memory ----


def test_nothing_is_compiled_and_nothing_copied_twice(compiled: list[str]) -> None:
    features = job(rows=((50, 60), (70, 0)), row_shape=(64, 9))
    taken: list[int] = []
    put = jax.device_put

    def seen(memory: Any, *args: Any) -> Any:
        taken.append(memory.ctypes.data)
        return put(memory, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "device_put", seen)
        flat = goflat.flatten(features)
    assert [out.unsafe_buffer_pointer() for out in flat] == taken
    assert compiled == []


def test_packed_parts_that_lie_well_share_the_buffer() -> None:
    flat = goflat.flatten(job(row_shape=(16,)), packed=True)  # rows of 64 bytes
    start = flat.buffer.unsafe_buffer_pointer()
    assert [out.unsafe_buffer_pointer() - start for out in flat] == [0, 5 * 64]


def test_memory_lives_as_long_as_an_output() -> None:
    features = job(row_shape=(16,))
    made: list[weakref.ref[Any]] = []
    put = jax.device_put

    def seen(memory: Any, *args: Any) -> Any:
        made.append(weakref.ref(memory))
        return put(memory, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "device_put", seen)
        flat = goflat.flatten(features, packed=True)
    want = oracle(features)
    parts = list(flat)
    del flat
    gc.collect()
    assert_same(parts, want)
    del parts
    gc.collect()
    assert [ref() for ref in made] == [None] * 3


def test_outputs_may_be_donated() -> None:
    """Their memory may be shared: a buffer and its parts stay right when one is given away."""
    flat = goflat.flatten(job(row_shape=(16,)), packed=True)
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    want = oracle(job(row_shape=(16,)))
    doubled = double(flat.buffer)
    assert_same(list(flat), want)
    assert bool((doubled == jnp.concatenate(want) * 2).all())
    first = double(flat[0])
    assert bool((first == want[0] * 2).all())
    assert_same(flat[1:], want[1:])


def test_entries_may_be_donated_afterwards() -> None:
    entry = (array((1000, 16)) + 0).block_until_ready()  # memory of JAX's own
    address = entry.unsafe_buffer_pointer()
    (flat,) = goflat.flatten({"a": [entry], "b": [entry]})
    doubled = jax.jit(lambda x: x * 2, donate_argnums=0)(entry)
    assert doubled.unsafe_buffer_pointer() == address, "something still reads the entry"
    assert_same([flat], [jnp.concatenate([array((1000, 16))] * 2)])


def test_deleted_entries_are_refused() -> None:
    gone = array((2, 3))
    gone.delete()
    for call in goflat.flatten, goflat.flatten_:
        with pytest.raises(goflat.DeviceError, match="key 'b', batch 0: got a deleted JAX array"):
            call({"a": [array((2, 3))], "b": [gone]})
    assert goflat.plan({"a": [gone]}).growth == gone.nbytes  # its shape says what it would take


@on_each_engine
def test_out_is_refused() -> None:
    features, outs = job(), oracle(job())
    before = [np.asarray(out).copy() for out in outs]
    arrays = [np.zeros((5, 3), np.float32), np.zeros((7, 3), np.float32)]
    jobs: list[tuple[Any, Any]] = [(features, outs), (features, arrays)]
    jobs += [({k: [np.asarray(x) for x in v] for k, v in features.items()}, outs)]
    jobs += [({k: [torch.zeros(x.shape) for x in v] for k, v in features.items()}, outs)]
    for entries, given in jobs:
        with pytest.raises(goflat.OwnershipError, match="batch 0: got an out and arrays of JAX"):
            goflat.flatten(entries, out=given)
    with pytest.raises(goflat.OwnershipError, match="arrays of JAX"):
        goflat.cat(features["0"], out=outs[0])
    with pytest.raises(goflat.OwnershipError, match="arrays of JAX"):
        goflat.flatten(features, packed=True, out=jnp.zeros((12, 3)))
    with pytest.raises(goflat.DTypeError, match="want an array of torch, NumPy or CuPy"):
        goflat.plan(features).bind(features)
    assert all(np.array_equal(a, b) for a, b in zip(outs, before, strict=True))


@pytest.mark.parametrize("other", [np.zeros((2, 3), np.float32), torch.zeros(2, 3)], ids=type)
def test_libraries_do_not_mix(other: Any) -> None:
    entry = array((2, 3))
    names = "jaxlib", type(other).__module__
    for a, b, (want, got) in ((entry, other, names), (other, entry, names[::-1])):
        for call in goflat.flatten, goflat.flatten_, goflat.plan, goflat.Layout.of:
            with pytest.raises(
                goflat.DTypeError, match=rf"key 'b', batch 0: got {got}.*, want {want}"
            ):
                call({"a": [a], "b": [b]})


def test_arena_has_none() -> None:
    with pytest.raises(goflat.DeviceError, match="batch 0: got cpu:0"):
        goflat.Arena(goflat.Layout.of(job()))
    arena = goflat.Arena(goflat.Layout.of({"a": [np.zeros((2, 3), np.float32)]}))
    with pytest.raises(goflat.DTypeError, match="key 'a', batch 0"):
        arena.put("a", 0, array((2, 3)))


# ---- consuming ----


def test_flatten_writes_over_nothing_and_frees_batch_by_batch() -> None:
    features = job()
    want, alias = oracle(features), features["2"][1]
    copy = np.asarray(alias).copy()
    refs = [weakref.ref(x) for line in features.values() for x in line]
    flat = goflat.flatten_(features, max_growth=LOTS)
    assert_same(flat, want)
    assert features == {}
    assert [ref() is None for ref in refs] == [True] * 5 + [False]
    assert np.array_equal(np.asarray(alias), copy)
    assert flat.plan.strategy == "stream"
    assert "arrays of JAX never change" in str(flat.plan)


def test_cat_consumes_and_limits_growth() -> None:
    parts = [array((2, 3)), array((1, 3))]
    with pytest.raises(goflat.MemoryLimitError):
        goflat.cat_(parts, max_growth=0)
    assert len(parts) == 2
    want = jnp.concatenate(parts)
    assert_same([goflat.cat_(parts, max_growth=36)], [want])
    assert parts == []


# ---- tracers ----


def total(features: Any) -> Any:
    """Return a number that depends on each output's values and on where they lie."""
    weights = [jnp.arange(out.size).reshape(out.shape) for out in goflat.flatten(features)]
    outs = goflat.flatten(features)
    return sum((out**2 * w).sum() for out, w in zip(outs, weights, strict=True))


def total_of_jax(features: Any) -> Any:
    outs = oracle(features)
    return sum((out**2 * jnp.arange(out.size).reshape(out.shape)).sum() for out in outs)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "jit": lambda f: jax.jit(f),
    "grad": lambda f: jax.grad(f),
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "hessian": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,)),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(transform: str) -> None:
    features = job()
    got = jax.tree.leaves(TRANSFORMS[transform](total)(features))
    want = jax.tree.leaves(TRANSFORMS[transform](total_of_jax)(features))
    assert_same(got, want)


def test_vmap() -> None:
    stack = {k: [jnp.stack([x, x + 1]) for x in line] for k, line in job().items()}
    got = jax.vmap(lambda x: list(goflat.flatten(x)))(stack)
    assert_same(got, jax.vmap(oracle)(stack))


def test_a_tracer_beside_a_constant() -> None:
    constant = array((2, 3))
    got = jax.jit(lambda x: goflat.cat([x, constant]))(constant)
    assert_same([got], [jnp.concatenate([constant, constant])])


def test_options_under_jit() -> None:
    features = job(row_shape=(2, 3), dim=1)

    def joined(x: Any) -> Any:
        flat = goflat.flatten(x, dim=1, packed=True, dtype=jnp.bfloat16)
        return [*flat, flat.buffer, goflat.cat_([x["2"][0]], max_growth=LOTS)]

    half = {key: [x.astype(jnp.bfloat16) for x in line] for key, line in features.items()}
    outs = oracle(half, 1)
    *got, last = jax.jit(joined)(features)
    assert_same(got, [*outs, jnp.concatenate(outs, 1)])
    assert_same([last], features["2"][:1])


def test_errors_under_jit_name_key_and_batch() -> None:
    with pytest.raises(goflat.ShapeError, match=r"key 'b', batch 0: got \(2, 4\), want \(\*, 3\)"):
        jax.jit(goflat.flatten)({"a": [array((1, 3))], "b": [array((2, 4))]})
    with pytest.raises(goflat.DTypeError, match=r"key 'b', batch 0: got .*Tracer, want numpy"):
        jax.jit(lambda x: goflat.flatten({"a": [np.zeros((1, 3))], "b": [x]}))(array((1, 3)))


def test_shapes_without_numbers() -> None:
    """As `jax.export` with symbolic sizes has them."""
    from jax import export

    (rows,) = export.symbolic_shape("n")
    shape = jax.ShapeDtypeStruct((rows, 3), jnp.float32)
    made = export.export(jax.jit(lambda a, b: goflat.cat([a, b, a])))(shape, shape)
    x = array((4, 3))
    assert np.array_equal(made.call(x, x), jnp.concatenate([x, x, x]))


# ---- devices and settings ----


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("index", [0, 2])
def test_outputs_lie_where_entries_do(index: int, bound: bool) -> None:
    """And are as free to go with arrays of other devices as what JAX makes of the entries."""
    device = jax.devices()[index]
    with jax.default_device(device):
        features = job()
        features = jax.device_put(features, device) if bound else features
        want = oracle(features)
    flat = goflat.flatten(features)
    assert_same(flat, want)
    assert flat.layout.devices == (f"cpu:{index}",) * 2


def test_the_default_device_is_no_matter() -> None:
    features = job()
    want = oracle(features)
    with jax.default_device(jax.devices()[1]):
        assert_same(goflat.flatten(features), want)
        assert_same(goflat.flatten(features, packed=True), want)


def test_batches_on_several_devices() -> None:
    first, second = jax.devices()[:2]
    features = {k: [jax.device_put(x, first), jax.device_put(y, second)] for k, (x, y) in pairs()}
    assert_same(goflat.flatten(features), oracle(features))
    with pytest.raises(goflat.DeviceError, match="batch 1: got cpu:1, want cpu:0"):
        goflat.flatten(features, packed=True)
    features["1"][0] = jax.device_put(features["1"][0], second)
    with pytest.raises(goflat.DeviceError, match="key '1', batch 0: got cpu:1, want cpu:0"):
        goflat.flatten(features)


def pairs() -> Any:
    return job().items()


def test_arrays_over_several_devices() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    features = {
        "a": [jax.device_put(array((6, 3), seed=n), sharding) for n in range(2)],
        "b": [jax.device_put(array((3, 3), seed=n + 5), sharding) for n in range(2)],
    }
    for packed in False, True:
        flat = goflat.flatten(features, packed=packed)
        assert flat.layout.devices == ("cpu:0,1,2",) * 2
        for got, want in zip(flat, oracle(features), strict=True):
            assert np.array_equal(np.asarray(got), np.asarray(want))
    assert np.array_equal(flat.buffer, jnp.concatenate(oracle(features)))


def test_one_program_for_all_batches(compiled: list[str]) -> None:
    """Where JAX joins, it compiles once for a layout, not once for each batch."""
    keys = [jax.random.split(jax.random.key(seed), 3) for seed in range(4)]
    features = {"a": keys[:2], "b": keys[2:]}
    for packed in False, True:
        compiled.clear()
        flat = goflat.flatten(features, packed=packed)
        again = goflat.flatten(features, packed=packed)
        assert len(compiled) == (1 if packed else 2)  # as it is traced, once
        for b, outs in enumerate(zip(flat, again, strict=True)):
            want = jnp.concatenate([jax.random.key_data(features[key][b]) for key in features])
            assert all(np.array_equal(jax.random.key_data(out), want) for out in outs)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
def test_64_bits(dtype: str) -> None:
    with jax.enable_x64(True):
        features = job(dtype)
        assert_same(goflat.flatten(features), oracle(features))
        want = oracle(features)
    assert_same(goflat.flatten(features, packed=True), want)  # made while it was allowed
    assert jax.config.jax_enable_x64 is False


def test_keys_of_random_numbers() -> None:
    keys = jax.random.split(jax.random.key(7), 3)
    got = goflat.cat([keys, keys])
    assert got.dtype == keys.dtype
    data = jax.random.key_data
    assert_same([data(got)], [jnp.concatenate([data(keys), data(keys)])])


def test_transfers_that_jax_guards() -> None:
    features = job()
    with jax.transfer_guard("disallow"):
        flat = goflat.flatten(features)
    assert_same(flat, oracle(features))


def test_threads() -> None:
    want = oracle(job())

    def work(_: int) -> None:
        for _ in range(10):
            assert_same(goflat.flatten(job()), want)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


@on_each_engine
def test_random_jobs() -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        rows = rng.integers(0, 5, (rng.integers(1, 5), rng.integers(1, 4)))
        dim = int(rng.integers(0, 3))
        features = job(str(rng.choice(DTYPES)), rows.tolist(), (2, 3), dim)
        want = oracle_by_numpy(features, dim)
        for got, right in zip(goflat.flatten(features, dim=dim), want, strict=True):
            assert np.asarray(got).tobytes() == right.tobytes()


def oracle_by_numpy(features: Any, dim: int) -> list[np.ndarray]:
    columns = zip(*features.values(), strict=True)
    return [np.concatenate([np.asarray(x) for x in column], dim) for column in columns]


# ---- processes ----


def test_neither_torch_nor_the_extension_is_needed() -> None:
    code = """
    import sys
    sys.modules["goflat._core"] = None
    import jax, jax.numpy as jnp, goflat
    x = jnp.ones((2, 3), jnp.bfloat16)
    flat = goflat.flatten({"a": [x], "b": [x]}, packed=True)
    assert flat[0].shape == (4, 3) and isinstance(flat.buffer, jax.Array)
    assert "torch" not in sys.modules
    kept = flat  # to the end of the interpreter
    """
    child.run(code, "-W", "ignore", env={"JAX_PLATFORMS": "cpu"})


def test_jax_is_never_imported() -> None:
    code = """
    import sys, numpy as np, torch, goflat
    goflat.flatten({"a": [torch.ones(2)]})
    goflat.flatten({"a": [np.ones(2)]}, packed=True)
    assert "jax" not in sys.modules
    """
    assert child.fork(code) == ""
