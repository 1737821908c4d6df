"""Small random checkpoints of many model families, and how each engine run differs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 2, "head_dim": 64}
MIXED = ["sliding_attention", "full_attention"] * 2
GPTJ = {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 4096, "rotary_dim": 32}
GPTJ |= {k: BASE[k] for k in ("vocab_size", "bos_token_id", "eos_token_id")}


def rope(kind: str, theta: float = 10_000.0, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}


@dataclass(frozen=True)
class Case:
    """One row of the matrix.

    Args:
        family: What the row is about.
        config_class: Of transformers.
        config: On top of ``BASE``.
        whole_config: ``config`` stands alone.
        dtype: Of weights and computation.
        engine: Arguments of ``vllm.LLM``.
        environment: For the process.
        lora: Run through a random LoRA adapter.
        fault: What is broken on purpose.
        deterministic: Whether the engine gives itself the same log-probabilities twice.
        expect: ``exact``, ``text_only`` or ``caught`` (a fault).
    """

    family: str
    config_class: str = "LlamaConfig"
    config: dict[str, Any] = field(default_factory=dict)
    whole_config: bool = False
    dtype: str = "bfloat16"
    engine: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    lora: bool = False
    fault: str = ""
    deterministic: bool = True
    expect: str = "exact"

    def make(self, folder: Path, tokenizer: Path) -> Path:
        """Write the checkpoint; the weights are large enough for attention to be uneven."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch
            import transformers

            config = self.config if self.whole_config else {**BASE, **self.config}
            made = getattr(transformers, self.config_class)(**config)
            torch.manual_seed(0)
            dtype = getattr(torch, self.dtype)
            model = transformers.AutoModelForCausalLM.from_config(made, dtype=dtype)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() > 1:
                        parameter.normal_(0, 0.06)
            model.save_pretrained(folder)
            transformers.AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
        return folder


HEAD64: dict[str, Any] = {"head_dim": 64}
LLAMA3 = rope(
    "llama3",
    500_000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=1024,
)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=1024)
PARTIAL = rope("default", partial_rotary_factor=0.75)
GEMMA = {"head_dim": 64, "query_pre_attn_scalar": 64, "tie_word_embeddings": True}

FAMILIES: dict[str, Case] = {
    "llama": Case("Llama, default rotary"),
    "llama-linear": Case("Llama, linear scaling", config=rope("linear", factor=2.0)),
    "llama3": Case("Llama, llama3 scaling", config=LLAMA3),
    "llama-yarn": Case("Llama, yarn scaling", config=YARN),
    "mistral": Case("Mistral", "MistralConfig", {**HEAD64, "sliding_window": None}),
    "mistral-window": Case(
        "Mistral, sliding window shorter than the memory",
        "MistralConfig",
        {**HEAD64, "sliding_window": 256},
    ),
    "qwen2": Case("Qwen2 (QKV bias)", "Qwen2Config"),
    "qwen3": Case("Qwen3 (QK norm)", "Qwen3Config", HEAD64),
    "phi3": Case(
        "Phi-3",
        "Phi3Config",
        {"sliding_window": None, "original_max_position_embeddings": 4096},
    ),
    "phi3-partial": Case(
        "Phi-3, partial rotary",
        "Phi3Config",
        {
            "sliding_window": None,
            "original_max_position_embeddings": 4096,
            "partial_rotary_factor": 0.75,
            **PARTIAL,
        },
    ),
    "olmo2": Case("OLMo-2", "Olmo2Config"),
    "granite": Case("Granite", "GraniteConfig"),
    "smollm3": Case(
        "SmolLM3 (layers without rotary)",
        "SmolLM3Config",
        {"use_sliding_window": False, "no_rope_layers": [1, 1, 1, 0]},
    ),
    "gemma2": Case(
        "Gemma 2 (soft cap, window shorter than the memory)",
        "Gemma2Config",
        {**GEMMA, "sliding_window": 256},
    ),
    "gemma3": Case(
        "Gemma 3 (two bases, window shorter than the memory)",
        "Gemma3TextConfig",
        {**GEMMA, "sliding_window": 256, "layer_types": MIXED},
    ),
    "gemma3-long": Case(
        "Gemma 3 (two bases, window longer than the memory)",
        "Gemma3TextConfig",
        {**GEMMA, "sliding_window": 2048, "layer_types": MIXED},
    ),
    "qwen3-moe": Case(
        "Qwen3-MoE",
        "Qwen3MoeConfig",
        {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 128},
    ),
    "mixtral": Case("Mixtral", "MixtralConfig", {**EXPERTS, "num_local_experts": 4}),
    # vLLM 0.32 runs it on its Transformers backend, whose answers are not the model's.
    "gpt-neox": Case(
        "GPT-NeoX (partial)", "GPTNeoXConfig", {"rotary_pct": 0.25}, expect="text_only"
    ),
    "gptj": Case("GPT-J (partial, interleaved)", "GPTJConfig", GPTJ, whole_config=True),
    "gpt-oss": Case(
        "gpt-oss (sinks, yarn, windows)",
        "GptOssConfig",
        {**EXPERTS, "num_local_experts": 4, "sliding_window": 128},
        deterministic=False,
    ),
    "cohere": Case("Cohere (interleaved)", "CohereConfig", HEAD64),
    "stablelm": Case("StableLM (partial)", "StableLmConfig", {"partial_rotary_factor": 0.25}),
    "glm4": Case("GLM-4 (partial, interleaved)", "Glm4Config", HEAD64),
    "starcoder2": Case("StarCoder2", "Starcoder2Config", {"sliding_window": None}),
    "llama-dynamic": Case(
        "Llama, dynamic NTK", config=rope("dynamic", factor=4.0), expect="text_only"
    ),
    "deepseek-v2": Case(
        "DeepSeek-V2-Lite (MLA)",
        "DeepseekV2Config",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 64,
            "v_head_dim": 64,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
        },
        expect="text_only",
    ),
    "qwen3-next": Case(
        "Qwen3-Next (linear attention hybrid)",
        "Qwen3NextConfig",
        {
            **EXPERTS,
            "num_experts": 4,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 128,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
        },
        expect="text_only",
    ),
}

AXES: dict[str, Case] = {
    "fp16": Case("float16", dtype="float16"),
    "fp32": Case("float32", dtype="float32"),
    "fp8-cache": Case("fp8 KV cache", engine={"kv_cache_dtype": "fp8_e5m2"}),
    "lora": Case("LoRA adapter", lora=True, engine={"enable_lora": True}),
    "no-prefix-cache": Case("prefix caching off", engine={"enable_prefix_caching": False}),
    "tiny-chunks": Case(
        "chunked prefill, 64 tokens a step",
        engine={"max_num_batched_tokens": 64, "max_num_seqs": 8},
    ),
    "compiled": Case("torch.compile", engine={"enforce_eager": False}),
    "block-32": Case("block size 32", engine={"block_size": 32}),
    "tensor-parallel-2": Case(
        "tensor parallel 2",
        engine={"tensor_parallel_size": 2},
        environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
    ),
}

FAULTS: dict[str, Case] = {
    f"{fault}-{name}": Case(
        f"{FAMILIES[name].family}: {fault}",
        FAMILIES[name].config_class,
        FAMILIES[name].config,
        FAMILIES[name].whole_config,
        fault=fault,
        expect="caught",
    )
    for fault, name in (
        ("wrong base", "llama"),
        ("wrong base", "gemma3"),
        ("wrong pairing", "llama"),
        ("wrong pairing", "gptj"),
        ("wrong scaling", "llama3"),
        ("wrong scaling", "llama-yarn"),
        ("layers swapped", "llama"),
        ("layers swapped", "qwen3"),
    )
}

CASES: dict[str, Case] = {**FAMILIES, **AXES, **FAULTS}
