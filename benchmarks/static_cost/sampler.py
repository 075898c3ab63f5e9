# SPDX-License-Identifier: Apache-2.0
"""What sampling costs at a batch of 64 and the vocabulary of the published models."""

from collections.abc import Iterator

import jax.numpy as jnp

from benchmarks.static_cost.compiler import Compiled, Compiler, Cost, cost
from benchmarks.static_cost.schedule import Kernel
from csrc_pallas.row_argmax.api import row_argmax
from csrc_pallas.row_argmax.kernel import BLOCK

REQUESTS = 64
VOCAB = 248_320


def costs(compiler: Compiler) -> Iterator[Cost]:
    """Greedy: the argmax kernel alone; `hbm_us` is the time to read the logits once."""
    compiled: Compiled = compiler.compile(
        row_argmax, compiler.shape((REQUESTS, VOCAB), jnp.float32)
    )
    kernel = compiled.kernel("row_argmax")
    yield cost(
        "greedy_64x248320",
        cycles=argmax_cycles(kernel),
        hbm_bytes=REQUESTS * VOCAB * 4,
        compiled=compiled,
        kernels=[kernel],
    )


def argmax_cycles(kernel: Kernel) -> int:
    """The grid is one loop; its two exclusive arms are the last block and every other one."""
    [grid] = [loop for loop in kernel.loops if not any(o.holds(loop) for o in kernel.loops)]
    steps = -(-VOCAB // BLOCK)
    inside = [arm for arm in kernel.arms if grid.holds(arm)]
    last, usual = sorted(
        (arm.bundles for arm in inside if not any(arm.holds(other) for other in inside)),
        reverse=True,
    )[:2]
    outside = kernel.bundles - grid.bundles
    return outside + (steps - 1) * (grid.bundles - last) + grid.bundles - usual
