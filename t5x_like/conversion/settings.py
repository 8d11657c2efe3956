"""What `convert` reads, how it changes the weights, and what it writes; see `t5x_like.convert`."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from t5x_like.interop.adapter_files import LoralibSettings
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.heads import HeadForm


@dataclasses.dataclass(frozen=True)
class Source:
    """The weights to convert.

    Attributes:
      path: A Hugging Face directory with safetensors, a T5X checkpoint of T5, a TensorFlow checkpoint of BERT, ALBERT,
        BigBird, ELECTRA, ETC or XLNet, a directory of peft or adapters, a directory of ELMo with `…weights.hdf5` and
        `…options.json`, a safetensors file of microsoft/LoRA, a `.npy` file with a prompt, a file of word vectors
        (`.vec`, `.txt`, `.bin`), a run directory, or one of its checkpoints.
      checkpoint: Which checkpoint of a run to convert: `latest`, `best` (by its evaluation), or a step.
      model: Configuration of the model. Not needed for a run, whose config.gin describes it, and for a Hugging Face
        directory, whose config.json does. Required for a T5X checkpoint, which does not describe it, and for a
        TensorFlow checkpoint without a file that does.
      network: Name of the network of a run to convert, such as `generator`, with the heads that read it; None for the
        model. Modules that it shares with another network are written with it.
      averaged: Whether to convert the averages of the parameters of a run with EMA_DECAY, and not its parameters.
      base_path: The Hugging Face directory of the base model of adapters, if it is not where the files of peft, or
        base.json of a run, say.
      lora: What a file of microsoft/LoRA does not contain.
      vocabulary_path: The vocabulary of a run, by default its copy in the run directory.
      allow_nonfinite: Whether to convert weights with infinite values or NaN, which are an error otherwise.
    """

    path: str
    checkpoint: str | int = "latest"
    model: ModelConfig | None = None
    network: str | None = None
    averaged: bool = True
    base_path: str | None = None
    lora: LoralibSettings = LoralibSettings()
    vocabulary_path: str | None = None
    allow_nonfinite: bool = False


@dataclasses.dataclass(frozen=True)
class Changes:
    """Changes of the weights.

    Attributes:
      fold_norms: Whether to fold the NoNorm layers of MobileBERT into its projections. The outputs stay the same up to
        rounding; all scales but those of the last layer are 1 and all biases are 0 afterwards.
      long: Makes a Longformer with this number of positions of a RoBERTa: positions are repeated, and projections of
        global tokens are copies of the others. A Longformer gets new copies, as after its pretraining.
      quantization: Type of the weights of a quantized run: `int8`, `int4`, `bfloat16` or `float16`; None for float32. A
        run of quantization-aware training has the same type.
      quantized_inputs: Whether the inputs of projections are int8 as well; see `adapters.quantization.Quantized`.
    """

    fold_norms: bool = False
    long: int | None = None
    quantization: Literal["int8", "int4", "bfloat16", "float16"] | None = None
    quantized_inputs: Literal["dynamic"] | None = None


NO_CHANGES = Changes()


@dataclasses.dataclass(frozen=True)
class Target:
    """What is written.

    Attributes:
      path: The directory to write, local or in a bucket; of word vectors, a file with one of their suffixes.
      heads: Whether to convert the heads of the objective (`all`), or the bare model (`none`). Exporting a run whose
        predictions no class of transformers computes is an error, unless it is `supported`: heads that no class has are
        left out then.
      labels: Names of the labels or scores of a run's head, for config.json; those of the objective by default, or else
        `LABEL_0`, ….
      head: The form of a run's head, whose dropout rate is written to config.json; that of the objective by default.
      bos_id: The first input of the decoder of a run, which config.json states; that of the objective by default.
      merge: Whether to add the updates of the adapters of a run to the kernels. False writes a directory of peft with
        the adapters and the head of the task alone.
      integers: Whether the Hugging Face directory of a quantized run has its integers, in the format of
        compressed-tensors, and not float32.
    """

    path: str
    heads: Literal["all", "supported", "none"] = "all"
    labels: Sequence[str] | None = None
    head: HeadForm | None = None
    bos_id: int | None = None
    merge: bool = True
    integers: bool = False
