"""Maps Gemma 1, with logits or with the heads of classification, to transformers."""

from t5x_like.interop.rotary_decoders import ACTIVATIONS, DecoderFiles, entries
from t5x_like.models.gemma import GemmaConfig

# Special token ids of transformers' classes.
TOKENS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
GEMMA = DecoderFiles(
    entries=entries(
        GemmaConfig,
        "Gemma",
        "gemma",
        keys={
            "vocab_size": ("vocab_size", 256000),
            "embed_dim": ("hidden_size", 3072),
            "mlp_dim": ("intermediate_size", 24576),
            "num_heads": ("num_attention_heads", 16),
            "num_kv_heads": ("num_key_value_heads", 16),
            "head_dim": ("head_dim", 256),
            "num_layers": ("num_hidden_layers", 28),
            "tied_embeddings": ("tie_word_embeddings", True),
        },
        defaults={"max_position_embeddings": 8192, "hidden_act": "gelu_pytorch_tanh"},
        # Published files say "gelu" and mean the approximation, as transformers 5 does; transformers 4.57 does not.
        activations=ACTIVATIONS | {"gelu": ("gelu", "linear")},
        fixed={"attention_bias": False},
        required={"attention_windows": (None,)},
        tokens=TOKENS,
    ),
    heads="Gemma",
    answers=False,
)
FAMILY = GEMMA.family()
