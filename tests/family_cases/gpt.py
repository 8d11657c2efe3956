"""GPT, GPT-2 and GPT-3."""

import dataclasses

from family_case import FSDP, NO_DROPOUT, SIZES, WIDE, Family

from t5x_like.models.gpt import GPTConfig

_GPT = GPTConfig(**SIZES, **NO_DROPOUT, num_heads=4, head_dim=3, num_layers=2, max_length=16)
FAMILIES = {
    "gpt3": Family(
        dataclasses.replace(_GPT, head_dim=5, num_layers=4, attention_windows=(None, 2), tied_embeddings=False),
        ("decoder",),
        flops_sizes=WIDE | {"num_layers": 4, "max_length": 96},
        huggingface=False,
    ),
    "gpt1": Family(dataclasses.replace(_GPT, norm_position="post"), ("decoder",), huggingface_sizes={"mlp_dim": 48}),
    "gpt2": Family(_GPT, ("decoder",), mesh=FSDP),
}

# GPT and GPT-2: published checkpoints. GPT-3: computed from the sizes in its paper (in XL and 13B, num_heads · head_dim
# differs from embed_dim).
PARAMETERS = {
    "gpt1/base": 116_534_784,
    "gpt1/tiny": 329_664,
    "gpt2/tiny": 412_008,
    "gpt2/distil": 81_912_576,
    "gpt2/small": 124_439_808,
    "gpt2/medium": 354_823_168,
    "gpt2/large": 774_030_080,
    "gpt2/xl": 1_557_611_200,
    "gpt3/tiny": 420_200,
    "gpt3/small": 125_226_240,
    "gpt3/medium": 355_871_744,
    "gpt3/large": 760_300_032,
    "gpt3/xl": 1_517_123_584,
    "gpt3/2_7b": 2_651_553_280,
    "gpt3/6_7b": 6_658_404_352,
    "gpt3/13b": 12_936_488_380,
    "gpt3/175b": 174_604_259_328,
}
