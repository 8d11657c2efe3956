"""Maps T5Gemma to transformers' `T5GemmaForConditionalGeneration`."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, gemma, rotary_decoders, special_token_fields
from t5x_like.interop.gemma2 import GEMMA2, WITH_SOFTCAP
from t5x_like.interop.head_classes import architecture
from t5x_like.interop.rotary_decoders import DecoderFiles
from t5x_like.interop.tensor_mapping import Family, TensorMapping, dense
from t5x_like.models.rotary_encoder_decoder import RotaryEncoderDecoderConfig
from t5x_like.models.rotary_layers import RotaryConfig
from t5x_like.models.t5gemma import T5GemmaConfig

# Special token ids of transformers' classes, which begin the decoder's inputs with BOS.
TOKENS = gemma.TOKENS | {"decoder_start_token_id": 2}
# Norm of a layer of a decoder alone -> its name in transformers.
_NORMS = {
    "attention_norm": "pre_self_attn_layernorm",
    "attention_output_norm": "post_self_attn_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}
LOGITS, TABLE = "lm_head.out_proj", "model.{stack}.embed_tokens.weight"
# Defaults of keys of both stacks.
_DEFAULTS = {"dropout_rate": 0.0, "attention_dropout": 0.0, "tie_word_embeddings": True, "is_encoder_decoder": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackFiles:
    """How transformers stores an encoder-decoder of two decoders: a configuration with one for each stack.

    Attributes:
      config_class: Class of the configuration.
      model: Name of its classes in transformers.
      model_type: The value of `model_type`.
      stacks: How a stack is stored.
      types: Stack -> the value of `model_type` in its configuration.
    """

    config_class: type[RotaryEncoderDecoderConfig]
    model: str
    model_type: str
    stacks: DecoderFiles
    types: Mapping[str, str]

    def config_from_json(self, hf_config: Mapping[str, Any]) -> Any:
        """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
        found = fields.with_defaults(hf_config, _DEFAULTS)
        fields.check_fixed(found, {"is_encoder_decoder": True})
        common = {"tied_embeddings": fields.boolean(found, "tie_word_embeddings")}
        if found.get("vocab_size") is not None:
            common["vocab_size"] = fields.size(found, "vocab_size")
        parts = {name: self.stack_from_json(name, fields.mapping(found, name), common) for name in self.types}
        rates = {
            field: fields.number(found, key)
            for field, key in (("dropout_rate", "dropout_rate"), ("attention_dropout_rate", "attention_dropout"))
        }
        return self.config_class(**parts, **rates)

    def stack_from_json(self, name: str, hf_config: Mapping[str, Any], common: Mapping[str, Any]) -> RotaryConfig:
        """Converts the configuration of a stack.

        Args:
          name: `encoder` or `decoder`.
          hf_config: Its contents.
          common: Fields that both stacks have in common.

        Raises:
          UserError: a value is not supported. The message names the stack.
        """
        try:
            return self.stacks.entries.config_class(**self.stacks.fields_from_json(hf_config) | dict(common))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None

    def stack_to_json(self, name: str, config: Any) -> dict[str, Any]:
        """Converts the configuration of a stack to its contents in config.json."""
        part = dataclasses.replace(config.parts[name], special_tokens=config.special_tokens)
        found = self.stacks.config_to_json(part) | {"model_type": self.types[name]}
        return {key: value for key, value in found.items() if key not in ("architectures", "torch_dtype")}

    def config_to_json(self, config: Any, heads: Iterable[str] = ()) -> dict[str, Any]:
        """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
        for name in ("shared_embeddings", "merged_attention", "padding_id"):
            if (value := getattr(config, name)) != (only := getattr(self.config_class(), name)):
                raise UserError(f"{name}={value}: not supported by transformers' {self.model}. Set {only}.")
        stacks = {name: self.stack_to_json(name, config) for name in self.types}
        of_both = {key: value for stack in stacks.values() for key, value in stack.items() if key in WITH_SOFTCAP}
        return {
            "architectures": [architecture(heads, {(): f"{self.model}ForConditionalGeneration"}, self.model)],
            "model_type": self.model_type,
            "torch_dtype": "float32",
            "is_encoder_decoder": True,
            **special_token_fields.to_json(config.special_tokens, TOKENS),
            "vocab_size": config.vocab_size,
            "tie_word_embeddings": config.decoder.tied_embeddings,
            "dropout_rate": config.dropout_rate,
            "attention_dropout": config.attention_dropout_rate,
            **of_both,
            **stacks,
        }

    def table(self, config: RotaryEncoderDecoderConfig) -> list[TensorMapping]:
        """Returns the mapping of every tensor."""
        encoder, decoder = (self._stack(config.parts[name], name) for name in ("encoder", "decoder"))
        layers = [_renamed(each, {"/attention": "/self_attention"}, {}) for each in decoder]
        if not config.merged_attention:
            crossed = {"/attention": "/cross_attention"}, {"self_attn": "cross_attn"}
            layers += [_renamed(each, *crossed) for each in decoder if "/attention" in each.name]
        tables = [TensorMapping("model/token_embedder/embedding", TABLE.format(stack="encoder"))]
        if not config.shared_embeddings:
            tables.append(TensorMapping("model/decoder_embedder/embedding", TABLE.format(stack="decoder")))
        logits = [] if config.decoder.tied_embeddings else dense("model/logits", LOGITS, bias=False)
        return [*tables, *encoder, *layers, *logits]

    def _stack(self, config: RotaryConfig, stack: str) -> list[TensorMapping]:
        """Returns the mapping of the layers and the norm of a stack, with the names of a decoder alone."""
        mappings = rotary_decoders.table(config, **self.stacks.tensors | {"norms": _NORMS}, stack=stack)
        return [_renamed(each, {}, {"model.": f"model.{stack}."}) for each in mappings if f"/{stack}/" in each.name]

    def tied(self, config: RotaryEncoderDecoderConfig) -> dict[str, str]:
        """Returns the copies of embeddings that files may have; see `tensor_mapping.Family.tied`."""
        encoder, decoder = (TABLE.format(stack=stack) for stack in ("encoder", "decoder"))
        copies = {decoder: encoder} if config.shared_embeddings else {}
        logits = {f"{LOGITS}.weight": copies.get(decoder, decoder)} if config.decoder.tied_embeddings else {}
        return copies | logits

    def family(self, **options: Any) -> Family:
        """Returns the family.

        Args:
          **options: Fields of `Family` beside those of all families of this kind.
        """
        return Family(
            model_types=(self.model_type,),
            config_class=self.config_class,
            config_from_json=self.config_from_json,
            config_to_json=self.config_to_json,
            table=self.table,
            prefix="model.",
            free_fields=("max_length",),  # parameters do not depend on it
            tied=self.tied,
            default_tokens=TOKENS,
            **options,
        )


def _renamed(mapping: TensorMapping, names: Mapping[str, str], hf_names: Mapping[str, str]) -> TensorMapping:
    """Returns a mapping with the first occurrences of parts of its names replaced."""
    name, hf_name = mapping.name, mapping.hf_name
    for old, new in names.items():
        name = name.replace(old, new, 1)
    for old, new in hf_names.items():
        hf_name = hf_name.replace(old, new, 1)
    return dataclasses.replace(mapping, name=name, hf_name=hf_name)


FAMILY = StackFiles(
    config_class=T5GemmaConfig,
    model="T5Gemma",
    model_type="t5gemma",
    stacks=GEMMA2,
    types=dict.fromkeys(("encoder", "decoder"), "t5_gemma_module"),
).family()
