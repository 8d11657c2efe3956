"""The layout of inputs and targets in the rows of a batch, for models that predict text."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from t5x_like.data import batches, features, prompts, specs
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of inputs and targets in the rows of a batch.

    Attributes:
      encoder: Whether an encoder reads the inputs. Otherwise a decoder reads the inputs and then the targets.
      bos: The tokens before the inputs or targets of the decoder.
      encoder_bos: The token before inputs of the encoder that are text, and then have no EOS; None for no token.
      prefix: Whether attention over the inputs of the decoder is bidirectional.
    """

    encoder: bool = True
    bos: tuple[int, ...] = (features.BOS_ID,)
    encoder_bos: int | None = None
    prefix: bool = False

    @classmethod
    def of(cls, spec: features.FeatureSpec) -> "Layout":
        """Returns the layout for a feature spec.

        Raises:
          UserError: The spec has no features of a decoder.
        """
        roles = {feature.name: feature.role for feature in spec.features}
        if "decoder_input_tokens" not in roles:
            raise UserError(
                f"OBJECTIVE: reads {', '.join(roles)}, but text needs a decoder. Give a text-to-text or "
                "language modeling objective."
            )
        return cls(
            encoder="encoder_input_tokens" in roles,
            bos=() if spec.first_id is None else (spec.first_id,),
            encoder_bos=prompts.encoder_bos(spec),
            prefix="decoder_prefix" in roles,
        )

    def shapes(self, rows: int, lengths: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the arrays of `batch` for predictions."""
        return {name: array.shape for name, array in self.batch([{"inputs": [1]}], rows, lengths).items()}

    def row_length(self, example: Mapping[str, list[int]]) -> int:
        """Returns the length of an example in a batch: of its row, or of the longer one of encoder and decoder."""
        inputs, targets = len(example["inputs"]), len(example.get("targets", ()))
        if self.encoder:
            return max(inputs, targets)
        return len(self.bos) + inputs + max(targets - 1, 0)

    def scored(self, example: Mapping[str, list[int]]) -> slice:
        """Returns the positions at which the targets of an example are scored."""
        first = 0 if self.encoder else self.row_length({"inputs": example["inputs"]}) - 1
        return slice(first, first + len(example["targets"]))

    def longest(self, lengths: Mapping[str, int], *, scored: bool) -> int:
        """Returns the length of the longest row.

        Args:
          lengths: Maximum lengths of `inputs` and `targets`.
          scored: Whether targets are scored.
        """
        return self.row_length({name: [0] * lengths[name] for name in ("inputs", "targets")[: 1 + scored]})

    def batch(
        self,
        examples: Sequence[Mapping[str, list[int]]],
        rows: int,
        lengths: Mapping[str, int],
        length: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Pads examples to a batch.

        Args:
          examples: Token ids of `inputs`, and of `targets` if they are scored.
          rows: Number of rows, at least the number of examples.
          lengths: Maximum lengths of `inputs` and `targets`.
          length: Maximum length of the rows of this batch; see `row_length`. By default there is no further limit.

        Returns:
          Arrays int32[rows, length] by feature.
        """
        scored = bool(examples) and "targets" in examples[0]
        longest = self.longest(lengths, scored=scored)
        length = longest if length is None else min(length, longest)
        if self.encoder:
            sequences = {name: [example.get(name, []) for example in examples] for name in ("inputs", "targets")}
            spec = dataclasses.replace(specs.ENCODER_DECODER, bos_id=self.bos[0])
            return batches.from_arrays(
                spec,
                {name: _padded(given, rows, min(length, lengths[name])) for name, given in sequences.items()},
                counts={name: [*map(len, given), *[0] * (rows - len(given))] for name, given in sequences.items()},
            )
        prompts = [[*self.bos, *example["inputs"]] for example in examples]
        sequences = prompts
        if scored:
            sequences = [prompt + example["targets"] for prompt, example in zip(prompts, examples, strict=True)]
        read = [sequence[:-1] for sequence in sequences] if scored else sequences
        columns = {"decoder_input_tokens": read, "decoder_segment_ids": [[1] * len(row) for row in read]}
        if self.prefix:
            columns["decoder_prefix"] = [[1] * len(prompt) for prompt in prompts]
        if scored:
            columns["decoder_target_tokens"] = [sequence[1:] for sequence in sequences]
            columns["decoder_loss_weights"] = [
                [int(position + 1 >= len(prompt)) for position in range(len(row))]
                for prompt, row in zip(prompts, read, strict=True)
            ]
        return {name: _padded(column, rows, length) for name, column in columns.items()}


def _padded(sequences: Sequence[Sequence[int]], rows: int, length: int) -> np.ndarray:
    array = np.zeros((rows, length), np.int32)
    for row, sequence in enumerate(sequences):
        array[row, : len(sequence)] = sequence
    return array
