"""Checks of feature lengths and vocabularies that preprocessors make before any data is read."""

from collections.abc import Mapping

import seqio

from t5x_like.errors import UserError


def require_lengths(purpose: str, sequence_length: Mapping[str, int] | None, *features: str) -> dict[str, int]:
    """Returns the lengths of the given features.

    Args:
      purpose: what needs the lengths, for the message.
      sequence_length: lengths by feature, or None if the user gave none.
      *features: names of the required features.

    Returns:
      The lengths of these features in tokens.

    Raises:
      UserError: a length is missing.
    """
    if sequence_length is None or not set(features) <= set(sequence_length):
        names = " and ".join(map(repr, features))
        raise UserError(f"TASK_FEATURE_LENGTHS={sequence_length}: {purpose} needs {names}. Give the length of each.")
    return {name: sequence_length[name] for name in features}


def require_shared_vocabulary(purpose: str, output_features: Mapping[str, seqio.Feature]) -> seqio.Vocabulary:
    """Returns the vocabulary that `inputs` and `targets` share.

    Args:
      purpose: what needs a shared vocabulary, for the message.
      output_features: the features of a task.

    Returns:
      The vocabulary.

    Raises:
      UserError: the vocabularies differ.
    """
    vocabulary = output_features["targets"].vocabulary
    if output_features["inputs"].vocabulary != vocabulary:
        raise UserError(f"{purpose} needs the same vocabulary for 'inputs' and 'targets'. Register the task with one.")
    return vocabulary


def require_eos(vocabulary: seqio.Vocabulary) -> int:
    """Returns the EOS id of a vocabulary.

    Args:
      vocabulary: any SeqIO vocabulary.

    Returns:
      The id.

    Raises:
      UserError: the vocabulary has no EOS.
    """
    if vocabulary.eos_id is None:
        raise UserError(
            f"{type(vocabulary).__name__} has no EOS (eos_id is None), but this task ends each document with one. Use "
            "another vocabulary."
        )
    return vocabulary.eos_id
