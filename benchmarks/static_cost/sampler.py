# SPDX-License-Identifier: Apache-2.0
"""What sampling costs at a batch of 64 and the vocabulary of the published models."""

from collections.abc import Iterator

import jax.numpy as jnp

from benchmarks.static_cost.compiler import Compiler, Cost, cost
from benchmarks.static_cost.schedule import Kernel
from csrc_pallas.row_argmax.api import row_argmax
from csrc_pallas.row_argmax.kernel import BLOCK
from vllm_ironwood.runner.sampler import THRESHOLD_BITS, SamplingInputs, sample

REQUESTS = 64
VOCAB = 248_320


def costs(compiler: Compiler) -> Iterator[Cost]:
    """Greedy alone, whose `hbm_us` is one read of the logits, and a batch that uses everything."""
    logits = compiler.shape((REQUESTS, VOCAB), jnp.float32)
    compiled = compiler.compile(row_argmax, logits)
    kernel = compiled.kernel("row_argmax")
    yield cost(
        f"greedy_{REQUESTS}x{VOCAB}",
        cycles=argmax_cycles(kernel),
        hbm_bytes=REQUESTS * VOCAB * 4,
        compiled=compiled,
        kernels=[kernel],
    )

    dtypes = {"top_k": jnp.int32, "seed": jnp.uint32, "position": jnp.int32}
    inputs = SamplingInputs(
        **{
            name: compiler.shape((REQUESTS,), dtypes.get(name, jnp.float32))
            for name in SamplingInputs._fields
        }
    )
    compiled = compiler.compile(sample, logits, inputs)
    yield cost(
        f"full_mix_{REQUESTS}x{VOCAB}",
        cycles=full_mix_cycles(compiled.kernels),
        # Every pass reads the logits: one for greedy, one each for temperature, min-p and noise,
        # and one for each bit of the two thresholds.
        hbm_bytes=(4 + 2 * THRESHOLD_BITS) * REQUESTS * VOCAB * 4,
        compiled=compiled,
        kernels=compiled.kernels,
    )


def full_mix_cycles(kernels: list[Kernel]) -> int:
    """Every kernel by the constant trips of its loops; the passes of bisection once a bit.

    The two passes are the kernels that select and reduce in a loop over blocks of the logits;
    loops without a constant bound are copies of a few rows and are counted once.
    """
    total = 0
    for kernel in kernels:
        cycles = kernel.bundles
        for loop in kernel.loops:
            cycles += ((loop.trips or 1) - 1) * loop.bundles
        total += cycles * (THRESHOLD_BITS if "select_reduce_fusion" in kernel.name else 1)
    return total


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
