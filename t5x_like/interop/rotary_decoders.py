"""How transformers stores the decoders of `models/rotary_layers.py`: Llama's names, and what families change."""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, rope
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import SEQUENCE, TOKENS, question_answering, tagging_form
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.layers.layer_kinds import over_layers, shortest
from t5x_like.objectives import heads

# Field of the configuration -> key of config.json. Families add their defaults.
KEYS = {
    "vocab_size": "vocab_size",
    "embed_dim": "hidden_size",
    "mlp_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "num_layers": "num_hidden_layers",
    "attention_dropout_rate": ("attention_dropout", 0.0),
    "norm_epsilon": ("rms_norm_eps", 1e-6),
    "tied_embeddings": ("tie_word_embeddings", False),
}
# Activation in transformers -> activations of the gate and of its factor.
ACTIVATIONS = {
    "silu": ("silu", "linear"),
    "swish": ("silu", "linear"),
    "gelu_pytorch_tanh": ("gelu", "linear"),
    "gelu_new": ("gelu", "linear"),
    "gelu": ("gelu_exact", "linear"),
    "relu": ("relu", "linear"),
}
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
KERNELS = {"wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}
# Norm of a layer -> its name in transformers, for norms before the blocks, and for norms on both sides.
PRE_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
BOTH_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_output_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}
LAYERS, HF_LAYERS = "model/decoder/layers", "model.layers.{i}"
SLIDING, FULL = "sliding_attention", "full_attention"
# Prefix of the names of the model's tensors in classes for question answering.
ANSWERING_PREFIX = "transformer."


def table(
    config: Any,
    *,
    norms: Mapping[str, str] = PRE_NORMS,
    head_norms: bool = False,
    biases: Collection[str] = (),
    stack: str = "decoder",
) -> list[TensorMapping]:
    """Returns the mapping of every tensor.

    Args:
      config: Configuration of the model.
      norms: Norm of a layer -> its name in transformers.
      head_norms: Whether queries and keys are normalized.
      biases: Names of the projections of a layer that have biases, such as `query`.
      stack: Name of the stack.
    """
    layers = f"model/{stack}/layers"
    mappings = [
        TensorMapping("model/token_embedder/embedding", "model.embed_tokens.weight"),
        *norm(f"model/{stack}/norm", "model.norm", bias=False),
    ]
    for name, hf_name in norms.items():
        mappings += norm(f"{layers}/{name}", f"{HF_LAYERS}.{hf_name}", bias=False)
    for name, hf_name in PROJECTIONS.items():
        options = {"bias": name in biases, "input_dims": 2 if name == "out" else 1}
        mappings += dense(f"{layers}/attention/{name}", f"{HF_LAYERS}.self_attn.{hf_name}", **options)
    for name, hf_name in {"query_norm": "q_norm", "key_norm": "k_norm"}.items() if head_norms else ():
        mappings.append(
            TensorMapping(f"{layers}/attention/{name}/scale", f"{HF_LAYERS}.self_attn.{hf_name}.weight", "flat")
        )
    for name, hf_name in KERNELS.items():
        mappings += dense(f"{layers}/mlp/{name}", f"{HF_LAYERS}.mlp.{hf_name}", bias=name in biases)
    return mappings if config.tied_embeddings else [*mappings, *dense("model/logits", "lm_head", bias=False)]


def every(period: int, *, full: int) -> Callable[[Mapping[str, Any]], list[str]]:
    """Returns the default of `layer_types`: layer i sees all tokens if `i % period == full`."""

    def types(hf_config):
        return [FULL if i % period == full else SLIDING for i in range(fields.size(hf_config, "num_hidden_layers"))]

    return types


def windows_from_json(types: Sequence[str], window: int | None, num_layers: int) -> tuple[int | None, ...]:
    """Returns the shortest pattern of windows, whose last repetition may be incomplete.

    Args:
      types: `layer_types` of config.json.
      window: The window of sliding layers; None for none.
      num_layers: Number of layers.

    Raises:
      UserError: A type is unknown, or a layer has none.
    """
    if len(types) != num_layers:
        raise UserError(f"layer_types: {len(types)} types for {num_layers} layers. Give one for each layer.")
    if unknown := sorted(set(types) - {SLIDING, FULL}):
        raise UserError(f"layer_types: {unknown[0]!r} is not supported. Supported: {FULL}, {SLIDING}.")
    return shortest([window if each == SLIDING else None for each in types])


def single_window(config: Any, model: str) -> int | None:
    """Returns the window of the layers that have one, or None if no layer has.

    Raises:
      UserError: layers have different windows.
    """
    sizes = sorted({window for window in config.attention_windows if window is not None})
    if len(sizes) > 1:
        raise UserError(
            f"attention_windows={config.attention_windows}: not supported by transformers' {model}, whose layers have "
            "one window or none. Give one size of windows."
        )
    return sizes[0] if sizes else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windows:
    """How config.json says which layers have a window.

    Attributes:
      default: Default of `sliding_window`.
      types: Returns the default of `layer_types`; None if all layers have the window, without this key.
      switch: Key that is true if there are windows; None if `sliding_window` alone says it.
    """

    default: int | None = None
    types: Callable[[Mapping[str, Any]], list[str]] | None = None
    switch: str | None = None

    def from_json(self, hf_config: Mapping[str, Any]) -> tuple[int | None, ...]:
        """Returns the pattern of windows; only `sliding_window` of config.json has no default, as it may be null."""
        window = hf_config.get("sliding_window", self.default)
        if self.switch and not fields.boolean({self.switch: False, **hf_config}, self.switch):
            window = None
        if window is not None:
            window = fields.size({"sliding_window": window}, "sliding_window")
        if self.types is None:
            return (window,)
        types = fields.strings(hf_config, "layer_types") or self.types(hf_config)
        return windows_from_json(types, window, fields.size(hf_config, "num_hidden_layers"))

    def to_json(self, config: Any, model: str) -> dict[str, Any]:
        """Returns the keys of config.json.

        Raises:
          UserError: layers have different windows, or a layer has none where all must have one.
        """
        window = single_window(config, model)
        found: dict[str, Any] = {"sliding_window": window}
        if self.switch:
            found[self.switch] = window is not None
        windows = over_layers(config.attention_windows, config.num_layers)
        if self.types is not None:
            return found | {"layer_types": [FULL if each is None else SLIDING for each in windows]}
        if window is not None and None in windows:
            raise UserError(
                f"attention_windows={config.attention_windows}: not supported by transformers' {model}, whose layers "
                "all have the same window."
            )
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderFiles:
    """How transformers stores a family of decoders.

    Attributes:
      entries: Table of config.json; its keys need not have `head_dim`, and rotary positions are read beside them.
      windows: How windows are stored; None for a family without.
      local_theta: Key of the base of the rotations in layers with a window; None if there is none.
      optional: Field -> key and default of numbers that may be null.
      implied: Returns keys of config.json that a configuration implies.
      tensors: Arguments of `table`, or a function of the configuration to them.
      heads: Name of the classes of downstream tasks before `For…`; None if there are none.
      answers: Whether there is a class for question answering.
      answering_prefix: Prefix of the names of the model's tensors in this class; empty for the usual one.
      tags: Whether there is a class for token classification.
    """

    entries: ConfigMap
    windows: Windows | None = None
    local_theta: str | None = None
    optional: Mapping[str, tuple[str, float | None]] = dataclasses.field(default_factory=dict)
    implied: Callable[[Any], Mapping[str, Any]] = lambda config: {}
    tensors: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    heads: str | None = None
    answers: bool = True
    answering_prefix: str = ANSWERING_PREFIX
    tags: bool = True

    def config_from_json(self, hf_config: Mapping[str, Any]) -> Any:
        """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
        return self.entries.config_class(**self.fields_from_json(hf_config))

    def fields_from_json(self, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the configuration by name."""
        given, hf_config = hf_config, self.entries.with_defaults(hf_config)
        # Null in files of models whose class has the key.
        bidirectional = "use_bidirectional_attention"
        fields.check_fixed({bidirectional: hf_config.get(bidirectional) or False}, {bidirectional: False})
        width, number = (fields.size(hf_config, name) for name in ("hidden_size", "num_attention_heads"))
        hf_config.setdefault("num_key_value_heads", number)
        hf_config.setdefault("head_dim", width // number)
        theta, scaling, max_length = rope.from_json(rope.of_layers(hf_config, FULL))
        found = {"rope_theta": theta, "rope_scaling": scaling, "max_length": max_length}
        if self.windows is not None:
            window = {"sliding_window": given["sliding_window"]} if "sliding_window" in given else {}
            without = {key: value for key, value in hf_config.items() if key != "sliding_window"}
            found["attention_windows"] = self.windows.from_json(without | window)
        if self.local_theta is not None:
            local = rope.of_layers(hf_config | {"rope_scaling": {}, "rope_theta": hf_config[self.local_theta]}, SLIDING)
            found["local_rope_theta"], local_scaling, _ = rope.from_json(local)
            if local_scaling is not None:
                raise UserError(
                    f"rope_parameters {hf_config['rope_parameters']}: {SLIDING} must not be scaled. Give rope_type "
                    "'default' there."
                )
        for field, (key, default) in self.optional.items():
            value = given.get(key, default)
            found[field] = None if value is None else fields.number({key: value}, key)
        found = self.entries.read(hf_config) | found
        fields.check_padding_id(given, hf_config["vocab_size"])
        return found

    def config_to_json(self, config: Any, heads: Iterable[str] = ()) -> dict[str, Any]:
        """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
        more = rope.to_json(config.rope_theta, config.rope_scaling, config.max_length)
        if self.windows is not None:
            more |= self.windows.to_json(config, self.entries.model)
        if self.local_theta is not None:
            more[self.local_theta] = config.local_rope_theta
        more |= {key: getattr(config, field) for field, (key, _) in self.optional.items()}
        more |= self.implied(config)
        return self.entries.to_json(config, heads, **more)

    def table(self, config: Any) -> list[TensorMapping]:
        """Returns the mapping of every tensor."""
        return table(config, **self.tensors)

    def head_classes(self, hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
        """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
        if self.heads is None:
            return ()
        score = tuple(dense(f"{OBJECTIVE}{SEQUENCE}/classifier", "score", bias=False))
        tagging = tuple(dense(f"{OBJECTIVE}{TOKENS}/classifier", "score"))
        found = [
            HeadClass(f"{self.heads}ForSequenceClassification", SEQUENCE, score, lambda hf_config: heads.LastToken())
        ]
        if self.tags:
            found.append(HeadClass(f"{self.heads}ForTokenClassification", TOKENS, tagging, tagging_form))
        if self.answers:
            spans = heads.EachDecoderToken(dropout_rate=0.0)
            prefix = self.answering_prefix
            prefixes = {"model_prefix": prefix, "replaced_prefix": "model."} if prefix else {}
            found.append(question_answering(f"{self.heads}ForQuestionAnswering", spans, **prefixes))
        return tuple(found)

    def family(self, **options: Any) -> Family:
        """Returns the family.

        Args:
          **options: Fields of `Family` that are not those of all decoders.
        """
        return Family(
            **{
                "model_types": (self.entries.model_type,),
                "config_class": self.entries.config_class,
                "config_from_json": self.config_from_json,
                "config_to_json": self.config_to_json,
                "table": self.table,
                "head_classes": self.head_classes,
                "prefix": "model.",
                "free_fields": ("max_length",),  # parameters do not depend on it
                "name_substitutions": ((rf"^{re.escape(ANSWERING_PREFIX)}", "model."),),
                "tied": tied,
                "default_tokens": self.entries.tokens,
            }
            | options
        )


def entries(config_class: type, model: str, model_type: str, **options: Any) -> ConfigMap:
    """Returns the table of config.json of a family.

    Args:
      config_class: Class of the configuration.
      model: Name of the model for messages, also the name of its classes in transformers.
      model_type: The value of `model_type`.
      **options: `keys` and `defaults` add to those of all families; others are fields of `ConfigMap`.
    """
    defaults = {"hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 2048}
    return ConfigMap(
        **{
            "config_class": config_class,
            "model": model,
            "model_type": model_type,
            "activations": ACTIVATIONS,
            "classes": {(): f"{model}ForCausalLM"},
        }
        | options
        | {"keys": KEYS | options.get("keys", {}), "defaults": defaults | options.get("defaults", {})}
    )


def tied(config: Any) -> dict[str, str]:
    """Returns the copy of the token embeddings that files of a model with tied embeddings may have."""
    return {"lm_head.weight": "model.embed_tokens.weight"} if config.tied_embeddings else {}
