"""Maps umT5 to transformers' `UMT5ForConditionalGeneration`, `UMT5ForSequenceClassification` and others."""

from t5x_like.interop import t5
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models.umt5 import UMT5Config


def table(config: UMT5Config) -> list[TensorMapping]:
    """Returns the mapping of every tensor: T5's, and the position biases of each layer."""
    shared = [mapping for mapping in t5.table(config) if not mapping.name.endswith("/relative_bias/table")]
    return shared + [
        TensorMapping(
            f"model/{stack}/layers/{attention}/relative_bias/table", t5.BIAS.format(stack=stack, layer="{i}"), "linear"
        )
        for stack, attention in (("encoder", "attention"), ("decoder", "self_attention"))
    ]


FAMILY = t5.family("UMT5", "umt5", UMT5Config, tied=True, table=table)
