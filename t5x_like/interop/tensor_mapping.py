"""Mappings between the parameters of a family and the tensors of Hugging Face."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from t5x_like.models.base import ModelConfig
from t5x_like.objectives.heads import HeadForm

# Matches no name.
NO_MATCH = re.compile(r"(?!)")
Layout = Literal["same", "linear", "conv1d", "flat", "reversed", "outputs_first"]


@dataclasses.dataclass(frozen=True)
class TensorMapping:
    """Maps one parameter to a Hugging Face tensor.

    Attributes:
      name: stored name of the parameter, `model/…` or `objective/…`. A stack of layers is one parameter.
      hf_name: name of the Hugging Face tensor; `{i}` stands for the index of the layer.
      layout: layout of the Hugging Face tensor: `same` as the parameter; `linear` (`[outputs, inputs]`, as in
        `torch.nn.Linear`); `conv1d` (`[inputs, outputs]`, as in GPT-2); `flat` (one dimension, as the bias of several
        heads); `reversed` (the dimensions in reverse order, as in `torch.nn.Conv1d`); `outputs_first` (all dimensions
        of outputs, then those of inputs, as in XLNet).
      input_dims: number of leading dimensions of the parameter that are inputs, for `linear`, `conv1d` and
        `outputs_first`.
      part: (k, n): the parameter is the k-th of n equal parts of the Hugging Face tensor along its outputs.
      groups: number of equal groups of the outputs, such as heads, each of which has the n parts one after another.
      first_layer: index `i` in `hf_name` of the first layer that has the parameter.
    """

    name: str
    hf_name: str
    layout: Layout = "same"
    input_dims: int = 1
    part: tuple[int, int] = (0, 1)
    groups: int = 1
    first_layer: int = 0

    def hf_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of the Hugging Face tensor.

        Args:
          shape: shape of the parameter, of one layer if it is stacked.
        """
        inputs, outputs = math.prod(shape[: self.input_dims]), math.prod(shape[self.input_dims :]) * self.part[1]
        if self.layout == "linear":
            return (outputs, inputs)
        if self.layout == "conv1d":
            return (inputs, outputs)
        if self.layout == "reversed":
            return tuple(reversed(shape))
        if self.layout == "outputs_first":
            return (*shape[self.input_dims :], *shape[: self.input_dims])
        return (math.prod(shape) * self.part[1],) if self.layout == "flat" else tuple(shape)

    def from_hf(self, tensor: Float[np.ndarray, "..."], shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
        """Converts a Hugging Face tensor to the parameter, of the given shape."""
        index, parts = self.part
        if self.layout == "outputs_first":
            return np.moveaxis(tensor, range(tensor.ndim - self.input_dims, tensor.ndim), range(self.input_dims))
        tensor = tensor.T if self.layout in ("linear", "reversed") else tensor
        if self.groups > 1:
            return tensor.reshape(*tensor.shape[:-1], self.groups, parts, -1)[..., index, :].reshape(shape)
        return np.split(tensor, parts, axis=-1)[index].reshape(shape)

    def to_hf(self, parameter: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Converts the parameter to the Hugging Face tensor, or to its part of that tensor."""
        if self.layout in ("linear", "conv1d"):
            parameter = parameter.reshape(math.prod(parameter.shape[: self.input_dims]), -1)
            return parameter.T if self.layout == "linear" else parameter
        if self.layout == "outputs_first":
            return np.moveaxis(
                parameter, range(self.input_dims), range(parameter.ndim - self.input_dims, parameter.ndim)
            )
        if self.layout == "reversed":
            return parameter.T
        return parameter.reshape(-1) if self.layout == "flat" else parameter

    def concatenate(self, parts: Sequence[Float[np.ndarray, "..."]]) -> Float[np.ndarray, "..."]:
        """Concatenates all parts of a Hugging Face tensor, in order."""
        if self.groups > 1:
            if self.layout == "linear":
                grouped = [part.reshape(self.groups, -1, part.shape[-1]) for part in parts]
                return np.concatenate(grouped, axis=1).reshape(-1, parts[0].shape[-1])
            grouped = [part.reshape(*part.shape[:-1], self.groups, -1) for part in parts]
            return np.concatenate(grouped, axis=-1).reshape(*parts[0].shape[:-1], -1)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=0 if self.layout == "linear" else -1)


def dense(
    name: str, hf_name: str, *, bias: bool = True, layout: Layout = "linear", input_dims: int = 1
) -> list[TensorMapping]:
    """Maps a projection: its kernel and, with `bias`, its bias."""
    kernel = TensorMapping(f"{name}/kernel", f"{hf_name}.weight", layout, input_dims)
    return [kernel, TensorMapping(f"{name}/bias", f"{hf_name}.bias", "flat")] if bias else [kernel]


def norm(name: str, hf_name: str, *, bias: bool = True) -> list[TensorMapping]:
    """Maps a norm: its scale and, with `bias` (LayerNorm), its bias."""
    scale = TensorMapping(f"{name}/scale", f"{hf_name}.weight")
    return [scale, TensorMapping(f"{name}/bias", f"{hf_name}.bias")] if bias else [scale]


@dataclasses.dataclass(frozen=True)
class HeadClass:
    """A class of transformers that has the head of a downstream task instead of a language model's.

    Attributes:
      name: name of the class, such as `BertForSequenceClassification`.
      head: name of the head, whose parameters are stored as `objective/NAME/…`.
      table: tensor mappings of the head.
      form: returns the form of the head for the contents of config.json, with the class's defaults for missing keys.
      has_labels: whether the outputs of the head are labels, whose names config.json has, or one score.
      model_prefix: prefix of the names of the model's tensors, before their names in the family's table.
      replaced_prefix: prefix of the names in the family's table that `model_prefix` replaces.
      has_logits: whether the class has the logits of a language model too.
      dropout_key: key of config.json with the dropout rate of the head.
      settings: keys of config.json with the values that the class has with this head, of several forms of a head.
    """

    name: str
    head: str
    table: tuple[TensorMapping, ...]
    form: Callable[[Mapping[str, Any]], HeadForm]
    has_labels: bool = True
    model_prefix: str = ""
    replaced_prefix: str = ""
    has_logits: bool = False
    dropout_key: str = "classifier_dropout"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def accepts(self, hf_config: Mapping[str, Any]) -> bool:
        """Returns whether config.json has the settings of this head, or does not have their keys."""
        return all(hf_config.get(key, value) == value for key, value in self.settings.items())

    def model_name(self, hf_name: str) -> str:
        """Returns the name of a tensor of the model in this class, given its name in the family's table."""
        return self.model_prefix + hf_name.removeprefix(self.replaced_prefix)


@dataclasses.dataclass(frozen=True)
class TensorFlowFormat:
    """How the released TensorFlow code of a family stores a model; see `tensorflow_checkpoints`.

    Attributes:
      markers: names of variables that no other family has together.
      names: (regex, replacement) pairs that turn Hugging Face names into names of variables with dots.
      objective: returns the class and the settings of the objective of pretraining, given the configuration and the
        shapes of all variables.
      config_file: name of the file with the sizes; None if published checkpoints have none.
      config_keys: key of this file -> key of config.json, where they differ.
      optional: stored names of parameters that checkpoints may lack, and that are 0 then.
      has_networks: whether the objective has networks beside the model.
      renamed: (regex, replacement) pairs for checkpoints that the released code writes with other names than the
        published ones have.
    """

    markers: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    objective: Callable[[Any, Mapping[str, tuple[int, ...]]], tuple[type, dict[str, Any]]]
    config_file: str | None = None
    config_keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    optional: tuple[str, ...] = ()
    has_networks: bool = False
    renamed: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Family:
    """Describes how transformers stores a family.

    Attributes:
      model_types: the values of `model_type` in config.json that belong to the family.
      config_class: the family's configuration class.
      config_from_json: converts the contents of config.json to a configuration. `dtype` and `scan_layers` stay None.
        Raises a UserError that names the key; the caller adds the file.
      config_to_json: converts a configuration and the names of the objective's parameters to the contents of
        config.json, including `architectures`. Raises a UserError if transformers does not support the model.
      table: returns the tensor mappings of a configuration, including pretraining heads that objectives own.
      head_classes: returns the classes of downstream tasks for the contents of config.json.
      prefix: prefix of the names of the model's tensors, or one prefix per model type. Files without heads may omit it.
      free_fields: fields of the configuration that may differ from config.json, in addition to `interop.FREE_FIELDS`.
      name_substitutions: (regex, replacement) pairs that convert tensor names of old files.
      ignored: names of tensors that are not read: copies, buffers, and heads that no objective has.
      must_be_zero: names of tensors without a counterpart here, which must be 0 everywhere.
      tied: returns the name of each copy and the name of the tensor that it must equal.
      omitted: returns the name of each tensor that a directory may omit and the name of the tensor that it equals then,
        given the contents of config.json.
      sentencepiece: name of the file with the tokenizer's SentencePiece model; None for other tokenizers.
      tokenizer_class: class of transformers that reads a SentencePiece model with the family's special pieces; None for
        a tokenizer.json.
      lowers_text: whether the family's uncased tokenizer also changes quotation marks and accents, as ALBERT's does.
      default_tokens: special token ids that transformers uses if config.json has none, by key.
      fold_norms: folds affine norms of a model into its projections, given the configuration and the parameters by
        stored name; None if no model of the family has such norms.
      check_class: raises a UserError if a class of transformers, given by its name, computes something else than the
        configuration of the model says.
      unused: returns the tensors of a class of transformers, given by its name, that it does not use, by name. They
        are written so that it does not report them as missing.
      tensorflow: format of the checkpoints of the released TensorFlow code; None if they are not read.
    """

    model_types: tuple[str, ...]
    config_class: type[ModelConfig]
    config_from_json: Callable[[Mapping[str, Any]], ModelConfig]
    config_to_json: Callable[[ModelConfig, Iterable[str]], dict[str, Any]]
    table: Callable[[ModelConfig], list[TensorMapping]]
    head_classes: Callable[[Mapping[str, Any]], tuple[HeadClass, ...]] = lambda hf_config: ()
    prefix: str | tuple[str, ...] = ""
    free_fields: tuple[str, ...] = ()
    name_substitutions: tuple[tuple[str, str], ...] = ()
    ignored: re.Pattern = NO_MATCH
    must_be_zero: re.Pattern = NO_MATCH
    tied: Callable[[ModelConfig], Mapping[str, str]] = lambda config: {}
    omitted: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda hf_config: {}
    sentencepiece: str | None = None
    tokenizer_class: str | None = None
    lowers_text: bool = False
    default_tokens: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fold_norms: Callable[[Any, Mapping[str, Any]], dict[str, Any]] | None = None
    check_class: Callable[[Any, str], None] = lambda config, name: None
    unused: Callable[[Any, str], dict[str, np.ndarray]] = lambda config, name: {}
    tensorflow: TensorFlowFormat | None = None
