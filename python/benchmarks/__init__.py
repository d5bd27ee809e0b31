"""Benchmarks: goflat against what people write today, in one interleaved run.

    python -m goflat bench                    all cases; a table, and docs/bench/cpu-<date>.json
    python -m goflat bench --device cuda      on a GPU, and docs/bench/cuda-<date>.json
    python -m goflat bench --only seed        some cases
    python -m goflat bench compare A B        two of those files side by side
    python -m goflat bench --memory           what ways cost in memory, see `benchmarks.memory`

(`python -m benchmarks` in the folder python/ is the same.) Each case is run under one or more
contracts, and a ratio only compares ways that keep the same one:

    new      outputs of their own: goflat.flatten against loop, zip and split, whichever is fastest
    packed   all outputs in one buffer: flatten(packed=True) against split
    given    outputs that exist already: flatten(out=) against torch.cat(out=)

The rules: one process and one thread setting for all ways; every result is compared with the
loop bit for bit before the clock starts; ways take turns, starting with another one in each round,
so that a machine that slows down slows all of them; numbers are medians over all rounds, with the
interquartile range beside them. A machine that does something else gives no usable numbers: the
load is recorded, and a run on a busy one says so.

On a GPU these are wall times of calls one after the other, so of whatever takes longer, host or
device; `device` has what the device alone takes, next to a memcpy of the same bytes.
"""
