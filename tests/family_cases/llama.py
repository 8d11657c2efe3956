"""Llama and Mistral."""

import dataclasses

from family_case import SIZES, Family

from t5x_like.models.llama import LlamaConfig

_LLAMA = LlamaConfig(**SIZES, num_heads=4, num_kv_heads=2, head_dim=6, num_layers=2, max_length=16)
FAMILIES = {
    # Four shards of heads, each with a copy of one of two key/value heads.
    "llama": Family(_LLAMA, ("decoder",), mesh=("fsdp_tp", {"fsdp": 2, "tensor": 4})),
    "mistral": Family(dataclasses.replace(_LLAMA, attention_windows=(3,), tied_embeddings=True), ("decoder",)),
}

# Published checkpoints.
PARAMETERS = {
    "llama1/7b": 6_738_415_616,
    "llama1/13b": 13_015_864_320,
    "llama1/33b": 32_528_943_616,
    "llama1/65b": 65_285_660_672,
    "llama2/7b": 6_738_415_616,
    "llama2/13b": 13_015_864_320,
    "llama2/70b": 68_976_648_192,
    "llama3/8b": 8_030_261_248,
    "llama3/70b": 70_553_706_496,
    "llama3_1/8b": 8_030_261_248,
    "llama3_1/70b": 70_553_706_496,
    "llama3_2/1b": 1_235_814_400,
    "llama3_2/3b": 3_212_749_824,
    "mistral/7b": 7_241_732_096,
    "llama2/tiny": 513_576,
    "mistral/tiny": 513_576,
}
