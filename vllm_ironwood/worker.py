# SPDX-License-Identifier: Apache-2.0
"""The worker: one process's devices, weights, caches and programs, behind vLLM's interface."""

import dataclasses
import itertools
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import torch
from tqdm import tqdm
from vllm.logger import init_logger
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from vllm_ironwood import compile_cache, devices
from vllm_ironwood.cache import audit
from vllm_ironwood.cache.config_builder import STATE_GROUP
from vllm_ironwood.cache.memory_plan import (
    MemoryPlan,
    bytes_per_slot,
    bytes_per_token,
    sampling_table_bytes,
    state_shapes,
    step_temporary_bytes,
)
from vllm_ironwood.cache.plan import NULL_SLOTS, CacheMemoryError, CachePlan, plan_caches
from vllm_ironwood.cache.state_spec import GdnStateSpec
from vllm_ironwood.config import IronwoodConfig
from vllm_ironwood.errors import one_line_exit
from vllm_ironwood.metrics import CountBoard
from vllm_ironwood.models.qwen3_5_moe.config import ModelConfig
from vllm_ironwood.models.qwen3_5_moe.model import init_caches
from vllm_ironwood.models.qwen3_5_moe.params import Params
from vllm_ironwood.models.qwen3_5_moe.weights import CheckpointError, load_params
from vllm_ironwood.profiling import Profiler
from vllm_ironwood.runner.buckets import Bucket, BucketGrid
from vllm_ironwood.runner.model_runner import ModelRunner
from vllm_ironwood.runner.programs import Programs, StepState
from vllm_ironwood.runner.requests import RequestTable
from vllm_ironwood.runner.thinking_budget import ReasoningMarkers, reasoning_markers
from vllm_ironwood.runner.token_rules import empty_tables

logger = init_logger("vllm.ironwood.worker")

# On the CPU a program that is too large costs less than one more program to compile.
BUCKET_GROWTH = {"tpu": 2, "cpu": 4}
# LLVM's costly passes take two thirds of a CPU compile and make no step faster.
COMPILER_OPTIONS = {"tpu": {}, "cpu": {"xla_llvm_disable_expensive_passes": True}}

_NUMBERS = itertools.count()

TORCH_DTYPE = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class IronwoodWorker(WorkerBase):
    """Serves one model on the JAX devices of this process."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.config = IronwoodConfig.from_vllm_config(self.vllm_config)
        self.model: ModelConfig = ModelConfig.from_hf(self.model_config.hf_config.to_dict())
        self._devices: list[jax.Device] = []
        self._markers: ReasoningMarkers | None = None
        self._params: Params | None = None
        self._plan: CachePlan | None = None
        self._num_pages = 0
        self._programs: Programs | None = None
        self._grid: BucketGrid | None = None
        self.model_runner: ModelRunner | None = None
        self._number = next(_NUMBERS)
        self._profiler = Profiler(self.vllm_config.profiler_config)
        self._board = CountBoard(self.vllm_config)
        audit.listen(self._number, self._board.publish)

    # Start: the calls come in this order.

    @one_line_exit()
    def init_device(self) -> None:
        self._devices = devices.select_device(self.config)
        self._markers = reasoning_markers(self.vllm_config.reasoning_config)
        compile_cache.enable()
        logger.info("%s", self.config.describe(self._devices))

    @one_line_exit(CheckpointError)
    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Read the checkpoint into device memory.

        Raises:
            CheckpointError: the checkpoint is not one of a Qwen 3.5 MoE, or is damaged.
        """
        start = time.perf_counter()
        self._params = load_params(
            self.model,
            Path(self.model_config.model),
            self._dtype,
            progress=self.load_config.use_tqdm_on_load,
        )
        jax.block_until_ready(self._params)
        seconds = time.perf_counter() - start
        logger.info("Loaded %.1f MiB of weights in %.1f s", self._weight_bytes / 2**20, seconds)

    @one_line_exit(CacheMemoryError)
    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        model, cache = self.model, self.cache_config
        self._plan = self._plan_caches()
        self._warn_of_few_slots()
        attention = FullAttentionSpec(
            block_size=cache.block_size,
            num_kv_heads=model.num_kv_heads,
            head_size=model.head_dim,
            dtype=TORCH_DTYPE[self._dtype.name],
        )
        conv_shape, state_shape = state_shapes(model)
        state = GdnStateSpec(
            block_size=self._state_block_size,
            shapes=(conv_shape, state_shape),
            dtypes=(TORCH_DTYPE[self._dtype.name], TORCH_DTYPE[self._state_dtype.name]),
            mamba_cache_mode=cache.mamba_cache_mode,
            num_slots=self._plan.num_slots,
            owner=self._number,
        )
        return {
            f"model.layers.{i}.{kind}": state if kind == "linear_attention" else attention
            for i, kind in enumerate(model.layer_types)
        }

    def get_supported_kv_cache_layouts(self) -> list[str]:
        return ["NHD"]

    def determine_available_memory(self) -> int:
        """Bytes for attention pages; the state slots are already taken out."""
        return self._plan.page_bytes

    def update_max_model_len(self, max_model_len: int) -> None:
        self.model_config.max_model_len = max_model_len

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the caches and a runner that owns them; may be called again."""
        num_pages = self._num_pages = kv_cache_config.num_blocks
        num_slots = kv_cache_config.kv_cache_groups[STATE_GROUP].kv_cache_spec.num_slots
        max_requests = self.scheduler_config.max_num_seqs
        caches = init_caches(
            self.model,
            num_pages=num_pages,
            page_size=self.cache_config.block_size,
            num_slots=num_slots,
            dtype=self._dtype,
            state_dtype=self._state_dtype,
        )
        state = StepState(
            caches=caches,
            last_tokens=jnp.zeros(max_requests + 1, jnp.int32),
            rules=empty_tables(max_requests, self.model.vocab_size),
        )
        requests = RequestTable(
            max_requests=max_requests,
            max_model_len=self.model_config.max_model_len,
            block_size=self.cache_config.block_size,
            state_block_size=self._state_block_size,
            engine_seed=self.model_config.seed,
            markers=self._markers,
        )
        self._grid = BucketGrid(
            max_tokens=self.scheduler_config.max_num_batched_tokens,
            max_requests=max_requests,
            growth=BUCKET_GROWTH[self._devices[0].platform],
        )
        self._programs = Programs(
            self.model,
            pages_per_request=requests.pages.shape[1],
            max_logprobs=self.model_config.max_logprobs,
            logprobs_mode=self.model_config.logprobs_mode,
            compiler_options=COMPILER_OPTIONS[self._devices[0].platform],
            forbid_recompilation=self.config.forbid_recompilation,
            on_late_compile=_log_late_compile,
        )
        self.model_runner = ModelRunner(
            params=self._params,
            state=state,
            programs=self._programs,
            grid=self._grid,
            requests=requests,
            num_pages=num_pages,
            num_slots=num_slots,
            audited_as=self._number if self.config.debug_fill_nan else None,
        )

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Compile the whole grid and run each program once, before ready is announced."""
        start = time.perf_counter()
        buckets = list(self._grid)
        with tqdm(total=len(buckets), desc="Compiling", unit="program") as bar:
            self.model_runner.warm_up(buckets, on_done=lambda bucket: bar.update())
        self._programs.seal()
        seconds = time.perf_counter() - start
        logger.info("Compiled %d programs in %.1f s", len(buckets), seconds)
        logger.info("%s", self._memory_plan().table())
        return CompilationTimes(language_model=seconds, encoder=0.0)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    # Serving.

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        return self.model_runner.execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> AsyncModelRunnerOutput:
        return self.model_runner.sample_tokens(grammar_output)

    def profile(
        self, is_start: bool = True, profile_prefix: str | None = None, **options: object
    ) -> None:
        """Start or stop a JAX profile (see :class:`~vllm_ironwood.profiling.Profiler`)."""
        if is_start:
            self._profiler.start(profile_prefix, **options)
        else:
            self.model_runner.wait()
            self._profiler.stop()

    def synchronize_device(self) -> None:
        self.model_runner.wait()

    def shutdown(self) -> None:
        """Let the last step finish, then drop weights and caches."""
        if self.model_runner is not None:
            self.model_runner.wait()
        self._profiler.close()
        audit.listen(self._number, None)
        self._board.remove()
        self.model_runner = self._programs = self._params = None

    # Sizes.

    @property
    def _dtype(self) -> jnp.dtype:
        return jnp.dtype(str(self.model_config.dtype).removeprefix("torch."))

    @property
    def _state_dtype(self) -> jnp.dtype:
        name = self.cache_config.mamba_ssm_cache_dtype
        return jnp.dtype("float32" if name == "auto" else name)

    @property
    def _state_block_size(self) -> int:
        return self.cache_config.mamba_block_size or self.model_config.max_model_len

    @property
    def _weight_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._params))

    @property
    def _sampling_table_bytes(self) -> int:
        return sampling_table_bytes(self.model.vocab_size, self.scheduler_config.max_num_seqs)

    @property
    def _memory_limit(self) -> int | None:
        return devices.memory_limit(self._devices, self.cache_config.gpu_memory_utilization)

    def _cache_budget(self) -> int:
        """Bytes for attention pages and GDN states together.

        On a TPU what weights and the largest step leave; on the CPU as configured.
        """
        if self.cache_config.kv_cache_memory_bytes:
            return self.cache_config.kv_cache_memory_bytes
        if self._memory_limit is None:
            return int(self.config.cpu_cache_gib * 2**30)
        temporaries = step_temporary_bytes(
            self.model,
            self._dtype,
            max_tokens=self.scheduler_config.max_num_batched_tokens,
            max_requests=self.scheduler_config.max_num_seqs,
        )
        return self._memory_limit - self._weight_bytes - temporaries - self._sampling_table_bytes

    def _plan_caches(self) -> CachePlan:
        page_size = self.cache_config.block_size
        return plan_caches(
            budget=self._cache_budget(),
            bytes_per_slot=bytes_per_slot(self.model, self._dtype, self._state_dtype),
            bytes_per_page=page_size * bytes_per_token(self.model, self._dtype),
            pages_per_request=-(-self.model_config.max_model_len // page_size),
            max_requests=self.scheduler_config.max_num_seqs,
            prefix_caching=self.cache_config.enable_prefix_caching,
            async_scheduling=self.scheduler_config.async_scheduling,
            num_slots=self.config.state_slots,
        )

    def _warn_of_few_slots(self) -> None:
        plan, wanted = self._plan, self.scheduler_config.max_num_seqs
        if plan.max_concurrency < wanted:
            logger.warning(
                "Only %d requests can run at once for lack of GDN state slots, fewer than "
                "--max-num-seqs %d: give the caches more memory or raise state_slots",
                plan.max_concurrency,
                wanted,
            )
        caching = self.cache_config.enable_prefix_caching
        if caching and plan.num_slots - NULL_SLOTS < (wanted + 1) * plan.slots_per_request:
            logger.warning(
                "With %d requests running hardly a GDN state slot is left to keep a snapshot in, "
                "so few prompts will be found in the prefix cache: give the caches more memory "
                "or raise state_slots above %d",
                min(wanted, plan.max_concurrency),
                plan.num_slots,
            )

    def _memory_plan(self) -> MemoryPlan:
        """What the memory went to, once caches and programs exist."""
        return MemoryPlan(
            limit=self._memory_limit,
            weights=self._weight_bytes,
            step_temporaries=self._programs.temporary_bytes(),
            sampling_tables=self._sampling_table_bytes,
            caches=dataclasses.replace(
                self._plan, page_bytes=self._num_pages * self._plan.bytes_per_page
            ),
            block_size=self.cache_config.block_size,
            max_model_len=self.model_config.max_model_len,
            max_requests=self.scheduler_config.max_num_seqs,
        )


def _log_late_compile(bucket: Bucket, seconds: float) -> None:
    logger.warning(
        "Compiled a program for %d tokens and %d requests while serving (%.1f s): "
        "it should have been compiled before ready",
        bucket.tokens,
        bucket.requests,
        seconds,
    )
