"""ETC. The small configuration has no global tokens, since the tests of all families give no sentences."""

from family_case import NO_DROPOUT, SIZES, WIDE, Family

from t5x_like.models.bigbird_etc import EtcConfig

_SMALL = dict(**SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=2, max_length=16)
_RELATIVE = dict(max_distance=3, relative_vocab_size=10, tokens_per_global=None)
FAMILIES = {
    "etc": Family(
        EtcConfig(**_SMALL, **_RELATIVE, local_radius=12),
        ("encoder",),
        # XLA also computes the products outside of the window, which the formula does not count.
        flops_sizes=WIDE | {"num_layers": 3, "max_length": 96, "local_radius": 96},
        huggingface=False,
    )
}
# Without heads, with the masked-LM head.
ETC = {
    "bigbird_etc/tiny": (4_356_096, 4_403_386),
    "bigbird_etc/base": (116_215_296, 116_837_946),
    "bigbird_etc/large": (380_733_440, 381_835_446),
}
PARAMETERS = {name: counts[0] for name, counts in ETC.items()}
