"""Benchmarks of memory: what each way to join entries costs, and whether goflat keeps its word.

    python -m goflat bench --memory --device cuda           all parts; tables, and a JSON file
    python -m goflat bench --memory --only cap --only growth

Parts, each in processes of its own, so that none profits from memory that another one has left
behind, and none takes the others down:

    growth      peak memory and time of each way people use, under two modes of torch's allocator,
                and the share of draws in which `flatten_` grows by 0 B, by how ragged they are
    timelines   memory after each step of a loop that accumulates, and of the seed job
    inplace     device time of `flatten_` next to a memcpy of the same bytes in the same L2 state
    prediction  plans of random jobs, of which some entries are held, against what was measured
    collect     growth of random jobs inside collect(), and what the context costs
    cap         joining 2.6 GB under a memory limit that has no room for a second copy
    ownership   how long goflat takes to find out who else uses an entry

Growth is how far memory rose above its level at the call: bytes requested, allocated and reserved
by torch's allocator; on a CPU, resident bytes of the process. A part is a sequence of items; one
that fails is recorded with its error, and the command then ends with status 1. A goal that is
missed is said, and is no failure. Planning without the ownership checks is a Go benchmark:
``go test -run - -bench PlanInPlace ./flatten``.
"""

from .run import main as main
