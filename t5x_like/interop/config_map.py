"""The table of a model type: what its config.json says, read and written by the same entries."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, special_token_fields
from t5x_like.interop.head_classes import architecture
from t5x_like.models.base import ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigMap:
    """Converts between a configuration and the contents of config.json.

    A family whose files say more calls `read` and adds fields to what it returns, or adds keys to those of `to_json`.

    Attributes:
      config_class: Class of the configuration.
      model: Name of the model for messages, such as `BERT`.
      model_type: The value of `model_type`.
      keys: Field of the configuration -> key of config.json, or the key and the default of transformers for it.
      defaults: Defaults of transformers for keys without a field. With `pad_token_id`, the model has a padding id.
      fixed: Keys with one supported value, which are written.
      refused: Further keys with one supported value, which are not written.
      required: Fields with one supported value, because transformers has no key for them.
      activations: Activation in transformers -> activation or activations here. The first name of each is written.
      activation_key: Key of the activation.
      width: Field of the features that all heads have together, unless `keys` has `head_dim`.
      classes: Names of the heads of pretraining -> class of transformers; see `head_classes.architecture`.
      poolers: The arguments `pooler` and `pooled` of `head_classes.architecture`.
      tokens: Special token ids of models that were not imported.
      first: Keys with which a file begins, in this order.
    """

    config_class: type[ModelConfig]
    model: str
    model_type: str
    keys: Mapping[str, str | tuple[str, Any]]
    defaults: Mapping[str, Any]
    activations: Mapping[str, str | tuple[str, ...]]
    classes: Mapping[tuple[str, ...], str]
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    refused: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    required: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    activation_key: str = "hidden_act"
    width: str = "embed_dim"
    poolers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tokens: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    first: tuple[str, ...] = ()

    @property
    def names(self) -> dict[str, str]:
        """Field of the configuration -> key of config.json."""
        return {field: key if isinstance(key, str) else key[0] for field, key in self.keys.items()}

    def with_defaults(self, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the contents of config.json with the defaults of transformers.

        Raises:
          UserError: The model has a padding id, and the given one has no embedding.
        """
        defaults = dict(key for key in self.keys.values() if not isinstance(key, str))
        found = fields.with_defaults(hf_config, defaults, self.defaults)
        if "pad_token_id" in self.defaults:
            fields.check_padding_id(hf_config, found.get("vocab_size"))
        return found

    def read(self, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the fields of the table.

        Args:
          hf_config: Contents of config.json with defaults.

        Returns:
          Field of the configuration -> value.

        Raises:
          UserError: a key is missing, or its value has the wrong type or is not supported.
        """
        found = fields.values(hf_config, self.names, self.config_class) | dict(self.required)
        fields.check_fixed(hf_config, {**self.fixed, **self.refused})
        if "head_dim" not in found:
            found["head_dim"] = fields.head_dim(hf_config, self.names[self.width], self.names["num_heads"])
        if "pad_token_id" in self.defaults:
            found["padding_id"] = hf_config["pad_token_id"]
        activation = fields.choice(hf_config, self.activation_key, self.activations)
        return found | {"activations": activation if isinstance(activation, tuple) else (activation,)}

    def from_json(self, hf_config: Mapping[str, Any]) -> Any:
        """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
        return self.config_class(**self.read(self.with_defaults(hf_config)))

    def to_json(self, config: Any, heads: Iterable[str] = (), **more: Any) -> dict[str, Any]:
        """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`.

        Args:
          config: The configuration.
          heads: Stored names of the parameters of the heads of pretraining.
          **more: Keys that the table does not have, before those that it has.

        Raises:
          UserError: transformers does not support the configuration or the heads.
        """
        activation = fields.activation_name(config.activations, self.activations, self.model)
        self._check(config)
        found = {
            "architectures": [architecture(heads, self.classes, self.model, **self.poolers)],
            "model_type": self.model_type,
            self.activation_key: activation,
            "torch_dtype": "float32",
            **self.fixed,
            **self.special_tokens(config),
            **more,
            **{key: getattr(config, field) for field, key in self.names.items()},
        }
        return {key: found[key] for key in (*self.first, *found)}

    def _check(self, config: Any) -> None:
        """Checks what transformers has no key for."""
        for name, only in self.required.items():
            if getattr(config, name) != only:
                raise UserError(
                    f"{name}={getattr(config, name)!r}: not supported by transformers' {self.model}. Set {only!r}."
                )
        if "head_dim" not in self.keys:
            fields.check_head_dim(config, self.model, width=self.width)
        if "embedding_dim" not in self.keys and config.unembed_dim != config.embed_dim:
            raise UserError(
                f"embedding_dim={config.embedding_dim}: not supported by transformers' {self.model}, whose embeddings "
                f"have the size of the hidden states, {config.embed_dim}. Omit it."
            )
        if "num_token_types" in self.keys and not config.num_token_types:
            raise UserError(f"num_token_types=0: not supported by transformers' {self.model}. Set 1.")

    def special_tokens(self, config: Any) -> dict[str, Any]:
        """Returns the special token ids by key. The padding id is `padding_id`, which masks rows and shifts positions.

        Args:
          config: The configuration.
        """
        if "pad_token_id" not in self.defaults:
            tokens = dict(self.tokens)
            if tokens.get("pad_token_id", 0) >= config.vocab_size:
                tokens["pad_token_id"] = None  # transformers requires a row of the embeddings
            return special_token_fields.to_json(config.special_tokens, tokens)
        found = special_token_fields.to_json(config.special_tokens, {"pad_token_id": config.padding_id, **self.tokens})
        stored = found.get("pad_token_id")
        if config.padding_id != (self.defaults["pad_token_id"] if stored is None else stored):
            found["pad_token_id"] = config.padding_id
        return found
