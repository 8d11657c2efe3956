"""T5 1.0, 1.1 and the variants of its study of architectures."""

import dataclasses

from family_case import ENCODER_DECODER, FSDP, SIZES, WIDE, WIDE_STACKS, Family

from t5x_like.models.t5 import T5Config
from t5x_like.models.t5_variants import SharedT5Config, T5DecoderConfig

_T5 = T5Config(**SIZES, **ENCODER_DECODER, relpos_buckets=8, relpos_max_distance=16)
_T5_1_0 = dataclasses.replace(_T5, activations=("relu",), tied_embeddings=True)


def _convert(kind: type[T5Config], config: T5Config) -> T5Config:
    """Converts a configuration to a subclass of its type."""
    return kind(**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)})


FAMILIES = {
    # Positions are exchanged for heads in attention.
    "t5_1_1": Family(
        _T5,
        ("encoder", "decoder"),
        mesh=("fsdp_tp_sp", {"data": 2, "fsdp": 2, "sequence": 2}),
        flops_sizes=WIDE_STACKS,
        initial_loss_margin=1.5,
    ),
    "t5_1_0": Family(_T5_1_0, ("encoder", "decoder"), mesh=FSDP, flops_sizes=WIDE_STACKS, initial_loss_margin=1.5),
    "t5_shared": Family(
        _convert(SharedT5Config, _T5_1_0),
        ("encoder", "decoder"),
        mesh=("dp", {"data": 8}),
        flops_sizes=WIDE | {"encoder_layers": 2, "decoder_layers": 2},
        attention={"encoder": "self_attention", "decoder": "self_attention"},
        initial_loss_margin=1.5,
        huggingface=False,
    ),
    "t5_decoder": Family(
        _convert(T5DecoderConfig, _T5_1_0),
        ("decoder",),
        mesh=("dp", {"data": 8}),
        flops_sizes=WIDE_STACKS,
        initial_loss_margin=1.5,
        huggingface=False,
    ),
}

# Totals of the shapes in T5X's model files, which equal the published checkpoints of the public sizes.
PARAMETERS = {
    "t5_1_0/tiny": 2_220_928,
    "t5_1_0/small": 60_506_624,
    "t5_1_0/base": 222_903_552,
    "t5_1_0/large": 737_668_096,
    "t5_1_0/3b": 2_851_598_336,
    "t5_1_0/11b": 11_307_321_344,
    "t5_1_1/tiny": 4_309_888,
    "t5_1_1/small": 76_961_152,
    "t5_1_1/base": 247_577_856,
    "t5_1_1/large": 783_150_080,
    "t5_1_1/xl": 2_849_757_184,
    "t5_1_1/xxl": 11_135_332_352,
    "t5_study/encoder_decoder": 222_903_552,
    "t5_study/shared": 137_950_080,
    "t5_study/six_layers": 123_790_080,
    "t5_study/decoder": 109_628_544,
}
