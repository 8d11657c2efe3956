"""T5Gemma 1 and 2, and encoder-decoders of other decoders."""

import dataclasses

from family_case import SIZES, WIDE, Family

from t5x_like.models.gemma import Gemma2Config, Gemma3Config
from t5x_like.models.qwen import Qwen2Config
from t5x_like.models.rotary_encoder_decoder import RotaryEncoderDecoderConfig
from t5x_like.models.t5gemma import T5Gemma2Config, T5GemmaConfig

_SIZES = SIZES | dict(num_heads=4, num_kv_heads=2, head_dim=6, max_length=16)
_GEMMA2 = Gemma2Config(
    **_SIZES, num_layers=2, attention_windows=(3, None), attention_softcap=2.0, final_softcap=5.0, query_scalar=3
)
_GEMMA3 = Gemma3Config(**_SIZES, num_layers=2, attention_windows=(3, None), query_scalar=3)
# Biases, and logits of their own.
_QWEN = Qwen2Config(**_SIZES, num_layers=2)
_TOKENS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "decoder_start_token_id": 2}


def _wide(stack):
    """Returns fields of a wide model of such stacks, without windows."""
    sizes = WIDE | {"num_kv_heads": 2, "max_length": 96, "attention_windows": (None,)}
    stacks = {"encoder": {"num_layers": 2}, "decoder": {"num_layers": 3}}
    return {"vocab_size": 1000} | {name: dataclasses.replace(stack, **sizes | own) for name, own in stacks.items()}


_BOTH = ("encoder", "decoder")
FAMILIES = {
    "t5gemma": Family(
        T5GemmaConfig(encoder=_GEMMA2, decoder=_GEMMA2), _BOTH, flops_sizes=_wide(_GEMMA2), default_tokens=_TOKENS
    ),
    "t5gemma2": Family(
        T5Gemma2Config(encoder=_GEMMA3, decoder=_GEMMA3),
        _BOTH,
        mesh=("fsdp_tp", {"fsdp": 2, "tensor": 4}),
        flops_sizes=_wide(_GEMMA3),
        default_tokens=_TOKENS,
    ),
    "qwen2_encoder_decoder": Family(
        RotaryEncoderDecoderConfig(encoder=_QWEN, decoder=_QWEN, padding_id=0),
        _BOTH,
        flops_sizes=_wide(_QWEN),
        huggingface=False,
    ),
}

# Published checkpoints; of T5Gemma 2, the text model.
PARAMETERS = {
    "t5gemma/tiny": 4_100_016,
    "t5gemma/s_s": 312_517_632,
    "t5gemma/b_b": 591_490_560,
    "t5gemma/l_l": 1_241_761_792,
    "t5gemma/ml_ml": 2_200_345_344,
    "t5gemma/xl_xl": 3_766_980_608,
    "t5gemma/2b_2b": 5_596_853_760,
    "t5gemma/9b_2b": 12_292_375_296,
    "t5gemma/9b_9b": 20_333_401_088,
    "t5gemma2/tiny": 2_102_024,
    "t5gemma2/270m_270m": 368_424_832,
    "t5gemma2/1b_1b": 1_697_783_168,
    "t5gemma2/4b_4b": 7_089_112_576,
}
