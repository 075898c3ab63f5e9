# SPDX-License-Identifier: Apache-2.0
"""State slots with known contents, and the inputs of one step on them."""

import functools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from csrc_pallas.gated_delta_net import GdnSlots, GdnWeights, gated_delta_net
from tests.kernels import oracles
from tests.kernels.ragged import Step

# Large: with nothing in the state, o = (k . q) beta v, and where k . q happens to be close to zero
# the norm would blow up the rounding of one product.
RMS_EPS = 1e-2


@dataclass(frozen=True)
class Shape:
    """Static sizes of a Gated DeltaNet test. One compiled program each."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    width: int = 4
    dtype: str = "float32"
    state_dtype: str = "float32"
    layers: int = 2
    slots: int = 15
    max_tokens: int = 200
    max_requests: int = 6

    def __str__(self) -> str:
        heads = f"{self.key_heads}k{self.value_heads}v{self.key_dim}x{self.value_dim}"
        return f"{heads}-width{self.width}-{self.dtype}-{self.state_dtype}"

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@functools.cache
def program(key_heads: int):
    return jax.jit(functools.partial(gated_delta_net, num_key_heads=key_heads, rms_eps=RMS_EPS))


def make_weights(shape: Shape, rng: np.random.Generator) -> GdnWeights:
    """Decays from almost none to almost all per token, as in trained models."""
    layers = shape.layers
    return GdnWeights(
        conv=rng.standard_normal((layers, shape.width, shape.channels), np.float32),
        a_log=np.log(rng.uniform(0.05, 8.0, (layers, shape.value_heads))).astype(np.float32),
        dt_bias=rng.uniform(-6.0, 1.0, (layers, shape.value_heads)).astype(np.float32),
        norm=rng.uniform(0.5, 1.5, (layers, shape.value_dim)).astype(np.float32),
    )


@dataclass
class Tokens:
    """Inputs of N rows."""

    qkv: np.ndarray  # [N, channels]
    z: np.ndarray  # [N, Hv * Dv]
    a: np.ndarray  # [N, Hv]
    b: np.ndarray  # [N, Hv]

    @classmethod
    def random(cls, shape: Shape, count: int, rng: np.random.Generator) -> "Tokens":
        values = shape.value_heads * shape.value_dim
        widths = (shape.channels, values, shape.value_heads, shape.value_heads)
        dtype = np.dtype(shape.dtype)
        return cls(*(rng.standard_normal((count, n), np.float32).astype(dtype) for n in widths))

    def __getitem__(self, rows: slice) -> "Tokens":
        return Tokens(self.qkv[rows], self.z[rows], self.a[rows], self.b[rows])

    def padded(self, count: int) -> "Tokens":
        """With rows of NaN up to `count`."""

        def pad(x):
            rows = np.full((count - len(x), x.shape[1]), np.nan, x.dtype)
            return np.concatenate([x, rows])

        return Tokens(pad(self.qkv), pad(self.z), pad(self.a), pad(self.b))


@dataclass
class Pool:
    """The states of all slots, with NaN in every slot that holds none."""

    shape: Shape
    weights: GdnWeights
    conv_state: np.ndarray  # [layers, slots, W - 1, channels]
    recurrent_state: np.ndarray  # [layers, slots, Hv, Dk, Dv]

    @classmethod
    def of(cls, shape: Shape, rng: np.random.Generator, held: list[int], layer: int) -> "Pool":
        """Random states in the slots `held` of `layer`."""
        conv = (shape.layers, shape.slots, shape.width - 1, shape.channels)
        state = (shape.value_heads, shape.key_dim, shape.value_dim)
        pool = cls(
            shape,
            make_weights(shape, rng),
            np.full(conv, np.nan, np.dtype(shape.dtype)),
            np.full((shape.layers, shape.slots, *state), np.nan, np.dtype(shape.state_dtype)),
        )
        for slot in held:
            pool.conv_state[layer, slot] = rng.standard_normal(conv[2:], np.float32)
            pool.recurrent_state[layer, slot] = rng.standard_normal(state, np.float32)
        return pool

    def run(self, tokens: Tokens, work: Step, slots: GdnSlots, layer: int):
        """One step: (out of all padded rows, the pool after it)."""
        padded = tokens.padded(self.shape.max_tokens)
        out, conv_state, recurrent_state = program(self.shape.key_heads)(
            padded.qkv,
            padded.z,
            padded.a,
            padded.b,
            self.weights,
            self.conv_state,
            self.recurrent_state,
            work.batch(self.shape.max_requests),
            slots,
            layer,
        )
        after = replace(
            self, conv_state=np.asarray(conv_state), recurrent_state=np.asarray(recurrent_state)
        )
        return np.asarray(out), after

    def expect(self, tokens: Tokens, slot: int | None, layer: int):
        """The oracle for one sequence that continues from `slot`, or from nothing."""
        conv_state, state = (
            self.conv_state[layer, slot or 0],
            self.recurrent_state[layer, slot or 0],
        )
        if slot is None:
            conv_state, state = np.zeros_like(conv_state), np.zeros_like(state)
        weights = (x[layer] for x in self.weights)
        return oracles.gated_delta_net(
            tokens.qkv,
            tokens.z,
            tokens.a,
            tokens.b,
            *weights,
            conv_state,
            state,
            num_key_heads=self.shape.key_heads,
            rms_eps=RMS_EPS,
        )


def make_slots(
    shape: Shape, read: list[int | None], write: list[int], garbage: int = 2**31 - 1
) -> GdnSlots:
    """Slots of the requests; a request which reads None has no initial state."""
    padding = shape.max_requests - len(read)
    reads = [garbage if slot is None else slot for slot in read] + [garbage] * padding
    return GdnSlots(
        read=jnp.asarray(reads, jnp.int32),
        write=jnp.asarray([*write, *[garbage] * padding], jnp.int32),
        has_initial_state=jnp.asarray([s is not None for s in read] + [True] * padding),
    )
