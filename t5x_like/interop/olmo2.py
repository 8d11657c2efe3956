"""Maps OLMo 2 to transformers."""

from t5x_like.interop.rotary_decoders import DecoderFiles, entries
from t5x_like.models.olmo import Olmo2Config

OLMO2 = DecoderFiles(
    entries=entries(
        Olmo2Config,
        "Olmo2",
        "olmo2",
        keys={
            "vocab_size": ("vocab_size", 50304),
            "embed_dim": ("hidden_size", 4096),
            "mlp_dim": ("intermediate_size", 11008),
            "num_heads": ("num_attention_heads", 32),
            "num_layers": ("num_hidden_layers", 32),
            "norm_epsilon": ("rms_norm_eps", 1e-5),
        },
        fixed={"attention_bias": False},
        required={"attention_windows": (None,)},
        tokens={"pad_token_id": 1, "eos_token_id": 50279},
    ),
    tensors={
        "norms": {"attention_norm": "post_attention_layernorm", "mlp_norm": "post_feedforward_layernorm"},
        "head_norms": True,
    },
)
FAMILY = OLMO2.family()
