"""Checks of data whose rows continue the rows of the batch before, for `SeqIOSource` and `CachedSource`."""

from t5x_like.data.features import Choices, FeatureSpec
from t5x_like.errors import UserError


def check_settings(name: str, *, shuffle: bool, pack: bool | None) -> None:
    """Checks the settings of a continuous source.

    Args:
      name: Name of the data, for messages.
      shuffle: Whether rows are shuffled.
      pack: Whether several examples share a row.

    Raises:
      UserError: rows are shuffled or packed.
    """
    if shuffle:
        raise UserError(
            f"{name}: continuous=True with shuffle=True: shuffled rows do not continue one another. Give "
            "data/continuous.gin after the other files, or set shuffle=False."
        )
    if pack:
        raise UserError(
            f"{name}: continuous=True with PACK=True: packed examples begin without state, and the documents of "
            "continuous data already follow one another in its rows. Set PACK=False."
        )


def check_spec(name: str, spec: FeatureSpec) -> None:
    """Checks that the features of an objective can be cut from documents.

    Args:
      name: Name of the data, for messages.
      spec: Features that the objective reads.

    Raises:
      UserError: the spec has choices, features of a fixed length, or sequences with lengths of their own.
    """
    problem = ""
    if choices := [feature.name for feature in spec.features if isinstance(feature.source, Choices)]:
        problem = f"{choices[0]!r} has choices (multiple choice)"
    elif spec.fixed_lengths:
        problem = f"{next(iter(spec.fixed_lengths))!r} has one value or a fixed number of values per example"
    elif len(leads := dict.fromkeys(map(spec.lead, spec.task_features))) > 1:
        problem = f"{' and '.join(map(repr, leads))} have lengths of their own"
    if problem:
        raise UserError(
            f"{name}: continuous=True: rows that continue one another are cut from one sequence of tokens, but the "
            f"objective reads features of which {problem}. Omit data/continuous.gin, or give an objective of a single "
            "sequence, such as objectives/recurrent_lm.gin."
        )
