# SPDX-License-Identifier: Apache-2.0
"""What is refused at start: data, one row per configuration that is not supported.

``docs/supported.md`` is written from these rows, and a test asks for each of them.
"""

from typing import TYPE_CHECKING

from vllm.config.compilation import CompilationMode, CUDAGraphMode

from vllm_ironwood.block_sizes import ALLOWED_BLOCK_SIZES
from vllm_ironwood.refusals import (
    SUPPORTED_ARCHITECTURES,
    WORKER_CLASS,
    Refusal,
    block_size,
    cache_dtype,
    changed,
    first_of,
    float16,
    foreign_architecture,
    given,
    gpu_backend_settings,
    logits_processor_package,
    op_priority,
    other_than,
    prefix_match_unit,
    remote_model,
    state_block,
    variable_set,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def torch_compilation(vllm_config: "VllmConfig") -> str | None:
    config = vllm_config.compilation_config
    passes = [name for name, value in vars(config.pass_config).items() if value is True]
    asked = {
        "mode": config.mode not in (None, CompilationMode.NONE) and config.mode,
        "cudagraph_mode": config.cudagraph_mode not in (None, CUDAGraphMode.NONE)
        and config.cudagraph_mode,
        "cudagraph_capture_sizes": config.cudagraph_capture_sizes,
        "max_cudagraph_capture_size": config.max_cudagraph_capture_size,
        "pass_config": [name for name in passes if name != "eliminate_noops"],
    }
    return next((f"{name}={value}" for name, value in asked.items() if value), None)


_LEAVE_OUT = "leave it out"
_ONE_DEVICE = "run with one device for now"

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "This architecture",
        "a checkpoint of another model (dense Qwen 3.5, Llama, ...)",
        f"use a Qwen 3.5 MoE checkpoint ({' or '.join(SUPPORTED_ARCHITECTURES)})",
        foreign_architecture,
    ),
    Refusal(
        "A model that is not a local directory",
        "`--model ORGANISATION/NAME`",
        "download it first (hf download) and give the directory",
        remote_model,
    ),
    Refusal(
        "A configuration from elsewhere",
        "`--hf-config-path`, `--config-format mistral`",
        "put config.json into the model directory",
        first_of(
            given("model_config.hf_config_path"),
            other_than("model_config.config_format", "auto", "hf"),
        ),
    ),
    Refusal(
        "Another implementation of the model",
        "`--model-impl transformers`, `--model-class-overrides`",
        _LEAVE_OUT,
        first_of(
            other_than("model_config.model_impl", "auto", "vllm"),
            given("model_config.model_class_overrides"),
        ),
    ),
    Refusal(
        "float16",
        "`--dtype float16` (or half)",
        "use --dtype bfloat16 or float32",
        float16,
    ),
    Refusal(
        "Quantization",
        "`--quantization`, `--quantization-config`, an FP8 or AWQ checkpoint",
        "use the bfloat16 checkpoint for now",
        first_of(
            given("model_config.quantization"),
            given("model_config.quantization_config"),
        ),
    ),
    Refusal(
        "Pooling and embedding",
        "`--runner pooling`, `--convert embed`",
        "use --runner generate",
        first_of(
            other_than("model_config.runner_type", "generate"),
            other_than("model_config.convert_type", "none"),
            given("model_config.pooler_config"),
        ),
    ),
    Refusal(
        "LoRA",
        "`--enable-lora`, VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
        "merge the adapter into the checkpoint",
        first_of(given("lora_config"), variable_set("VLLM_ALLOW_RUNTIME_LORA_UPDATING")),
    ),
    Refusal(
        "Speculative decoding",
        "`--speculative-config`, `--spec-method`, `--spec-model`",
        "leave it out for now",
        given("speculative_config"),
    ),
    Refusal(
        "A custom logits processor",
        "`--logits-processors`, a package with `vllm.logits_processors` entry points",
        "leave it out, or uninstall it: it would run in torch on the host",
        first_of(given("model_config.logits_processors"), logits_processor_package),
    ),
    Refusal(
        "Prompt embeddings",
        "`--enable-prompt-embeds`",
        "send text or token ids",
        given("model_config.enable_prompt_embeds"),
    ),
    Refusal(
        "An input/output processor",
        "`--io-processor-plugin`",
        _LEAVE_OUT,
        given("model_config.io_processor_plugin"),
    ),
    Refusal(
        "float64 noise in the sampler",
        "`--use-fp64-gumbel`",
        "leave it out: a TPU has no float64",
        given("model_config.use_fp64_gumbel"),
    ),
    Refusal(
        "Sleep mode",
        "`--enable-sleep-mode`",
        "stop the server to free the device",
        first_of(
            given("model_config.enable_sleep_mode"),
            given("model_config.sleep_preserve_parameter_names"),
            given("model_config.sleep_mode_offload_cudagraph"),
            given("model_config.enable_nccl_comm_suspend"),
            other_than("model_config.sleep_mode_backend", "cumem"),
        ),
    ),
    Refusal(
        "Returning the experts of each token",
        "`--enable-return-routed-experts`",
        _LEAVE_OUT,
        changed("aux_output_config"),
    ),
    Refusal("Watermarking", "`--watermark-config`", _LEAVE_OUT, given("watermark_config")),
    Refusal("Diffusion decoding", "`--diffusion-config`", _LEAVE_OUT, given("diffusion_config")),
    Refusal(
        "Changing the weights of a running server",
        "`--weight-transfer-config`",
        "start the server again with the new checkpoint",
        given("weight_transfer_config"),
    ),
    Refusal(
        "This weight format",
        "`--load-format` other than auto or safetensors",
        "use safetensors files; random weights: ironwood make-checkpoint",
        other_than("load_config.load_format", "auto", "safetensors"),
    ),
    Refusal(
        "An option of vLLM's weight loaders",
        "`--model-loader-extra-config`, `--ignore-patterns`, `--safetensors-...`, `--pt-...`",
        "leave it out: the checkpoint is read slice by slice, straight to the device",
        changed("load_config", "load_format", "download_dir", "use_tqdm_on_load"),
    ),
    Refusal(
        "Pipeline parallelism",
        "`--pipeline-parallel-size` above 1",
        _ONE_DEVICE,
        other_than("parallel_config.pipeline_parallel_size", 1),
    ),
    Refusal(
        "More than one machine",
        "`--nnodes` above 1",
        "run on one machine for now",
        other_than("parallel_config.nnodes", 1),
    ),
    Refusal(
        "Fault tolerance",
        "`--enable-fault-tolerance`",
        _LEAVE_OUT,
        given("parallel_config.enable_fault_tolerance"),
    ),
    Refusal(
        "Context parallelism",
        "`--prefill-context-parallel-size` or `--decode-context-parallel-size` above 1",
        _ONE_DEVICE,
        first_of(
            other_than("parallel_config.prefill_context_parallel_size", 1),
            other_than("parallel_config.decode_context_parallel_size", 1),
        ),
    ),
    Refusal(
        "Tensor parallelism",
        "`--tensor-parallel-size` above 1",
        _ONE_DEVICE,
        other_than("parallel_config.tensor_parallel_size", 1),
    ),
    Refusal(
        "Data parallelism",
        "`--data-parallel-size` above 1",
        "run with one engine for now",
        other_than("parallel_config.data_parallel_size", 1),
    ),
    Refusal(
        "Expert parallelism",
        "`--enable-expert-parallel`, `--eplb-config`, `--all2all-backend`, ...",
        _ONE_DEVICE,
        first_of(
            given("parallel_config.enable_expert_parallel"),
            changed("parallel_config.eplb_config"),
            given("parallel_config.enable_ep_weight_filter"),
            other_than("parallel_config.expert_placement_strategy", "linear"),
            other_than("parallel_config.all2all_backend", "allgather_reducescatter"),
        ),
    ),
    Refusal(
        "Microbatching or sharded sampling",
        "`--enable-dbo`, `--ubatch-size`, `--enable-hc-sp`, `--enable-batch-sharded-sampling`",
        _LEAVE_OUT,
        first_of(
            given("parallel_config.enable_dbo"),
            given("parallel_config.ubatch_size"),
            given("parallel_config.enable_hc_sp"),
            given("parallel_config.enable_batch_sharded_sampling"),
        ),
    ),
    Refusal(
        "Another executor or worker",
        "`--distributed-executor-backend`, `--worker-cls`",
        "leave it out: the engine core runs the one worker itself",
        first_of(
            other_than("parallel_config.distributed_executor_backend", "uni"),
            other_than("parallel_config.worker_cls", "auto", WORKER_CLASS),
        ),
    ),
    Refusal(
        "Choosing devices by number",
        "`--device-ids`",
        "set TPU_VISIBLE_CHIPS",
        given("parallel_config.assigned_physical_gpu_ids"),
    ),
    Refusal(
        "Binding to NUMA nodes",
        "`--numa-bind`",
        "start the server under numactl",
        first_of(
            given("parallel_config.numa_bind"),
            given("parallel_config.numa_bind_nodes"),
            given("parallel_config.numa_bind_cpus"),
        ),
    ),
    Refusal(
        "This worker option",
        "`--max-parallel-loading-workers`, `--enable-shm-tensor-arena`",
        _LEAVE_OUT,
        first_of(
            given("parallel_config.max_parallel_loading_workers"),
            given("parallel_config.enable_shm_tensor_arena"),
        ),
    ),
    Refusal(
        "This cache dtype",
        "`--kv-cache-dtype` other than auto or the dtype of the model",
        "use --kv-cache-dtype auto",
        first_of(cache_dtype, given("cache_config.kv_cache_dtype_skip_layers")),
    ),
    Refusal(
        "This block size",
        "`--block-size` that is no power of two from 16 to 256",
        f"use one of {', '.join(map(str, ALLOWED_BLOCK_SIZES))} (the default is 128)",
        block_size,
    ),
    Refusal(
        "A state block of its own",
        "`--mamba-block-size`, `--prefix-match-unit` other than the block size",
        "set --block-size: attention and GDN states share it",
        first_of(state_block, prefix_match_unit),
    ),
    Refusal(
        "This state dtype",
        "`--mamba-cache-dtype`, `--mamba-ssm-cache-dtype float16`, stochastic rounding",
        "use --mamba-ssm-cache-dtype float32 (the default) or bfloat16",
        first_of(
            other_than("cache_config.mamba_cache_dtype", "auto"),
            other_than("cache_config.mamba_ssm_cache_dtype", "auto", "float32", "bfloat16"),
            given("mamba_config.enable_stochastic_rounding"),
        ),
    ),
    Refusal(
        "This kind of state cache",
        "`--use-replayssm`, `--enable-mamba-shared-prefix-checkpoint`",
        _LEAVE_OUT,
        first_of(
            given("cache_config.use_replayssm"),
            other_than("cache_config.replayssm_buffer_len", 16),
            given("cache_config.enable_mamba_shared_prefix_checkpoint"),
        ),
    ),
    Refusal(
        "One cache for attention and states",
        "`--disable-hybrid-kv-cache-manager`",
        "leave it out: the two are separate pools",
        given("scheduler_config.disable_hybrid_kv_cache_manager"),
    ),
    Refusal(
        "Skipping layers in the prefill",
        "`--kv-sharing-fast-prefill`",
        _LEAVE_OUT,
        given("cache_config.kv_sharing_fast_prefill"),
    ),
    Refusal(
        "Moving the cache elsewhere",
        "`--kv-transfer-config`, `--kv-offloading-size`, `--ec-transfer-config`",
        "leave it out for now",
        first_of(
            given("kv_transfer_config"),
            given("cache_config.kv_offloading_size"),
            given("ec_transfer_config"),
        ),
    ),
    Refusal(
        "Cache events", "`--kv-events-config`", "leave it out for now", given("kv_events_config")
    ),
    Refusal(
        "Offloading weights to the host",
        "`--cpu-offload-gb`, `--offload-...`",
        "leave it out: the weights must fit the device",
        first_of(
            other_than("offload_config.offload_backend", "auto"),
            changed("offload_config.uva"),
            changed("offload_config.prefetch"),
        ),
    ),
    Refusal(
        "Another scheduler",
        "`--scheduler-cls`",
        _LEAVE_OUT,
        given("scheduler_config.scheduler_cls"),
    ),
    Refusal(
        "Multimodal inputs in one piece",
        "`--disable-chunked-mm-input`",
        "leave it out: only text is served",
        given("scheduler_config.disable_chunked_mm_input"),
    ),
    Refusal(
        "An encoder cache",
        "`--ec-manager-config`",
        "leave it out: only text is served",
        changed("ec_manager_config"),
    ),
    Refusal(
        "Choosing GPU kernels",
        "`--attention-backend`, `--moe-backend`, `--mamba-backend`, `--gdn-prefill-backend`, ...",
        "leave it out: there is one kernel for each operation",
        first_of(
            changed("attention_config", "sparse_mla_prefill_workspace_factor"),
            changed(
                "kernel_config", "ir_op_priority", "enable_flashinfer_autotune", "enable_jit_warmup"
            ),
            given("kernel_config.enable_flashinfer_autotune"),
            op_priority,
            changed("mamba_config", "enable_stochastic_rounding"),
            gpu_backend_settings,
        ),
    ),
    Refusal(
        "Choosing how torch compiles",
        "`--compilation-config`, `--cudagraph-capture-sizes`",
        "leave it out: the programs are compiled by XLA, all of them before ready",
        torch_compilation,
        before_defaults=True,
    ),
    Refusal(
        "This profile",
        "`--profiler-config` with another profiler than torch, or options beside "
        "torch_profiler_dir and ignore_frontend",
        "give profiler=torch and torch_profiler_dir alone: a JAX profile is written there",
        first_of(
            other_than("profiler_config.profiler", "torch"),
            changed("profiler_config", "profiler", "torch_profiler_dir", "ignore_frontend"),
        ),
    ),
    Refusal(
        "This measurement",
        "`--collect-detailed-traces`, `--cudagraph-metrics`, `--enable-mfu-metrics`, "
        "`--enable-layerwise-nvtx-tracing`, `--jit-monitor-mode`",
        "leave it out; for late compiles set forbid_recompilation in --additional-config",
        first_of(
            given("observability_config.collect_detailed_traces"),
            given("observability_config.cudagraph_metrics"),
            given("observability_config.enable_mfu_metrics"),
            given("observability_config.enable_layerwise_nvtx_tracing"),
            other_than("observability_config.jit_monitor_mode", "warn"),
            given("observability_config.jit_monitor_verbose"),
        ),
    ),
    Refusal(
        "vLLM's model runner V2",
        "VLLM_USE_V2_MODEL_RUNNER=1",
        "unset the variable",
        variable_set("VLLM_USE_V2_MODEL_RUNNER"),
    ),
    Refusal(
        "vLLM's batch-invariant mode",
        "VLLM_BATCH_INVARIANT=1",
        "unset the variable",
        variable_set("VLLM_BATCH_INVARIANT"),
    ),
)
