"""Properties of the features of a task's examples."""

import dataclasses
from typing import Literal, get_args

DType = Literal["int32", "float32"]
"""The dtype of a feature: int32 for token ids and other integers, or float32."""


@dataclasses.dataclass(frozen=True)
class TaskFeature:
    """Properties of a task feature that is not a sequence of token ids with its own length and padding.

    Attributes:
      name: Key in the task's examples.
      aligned_with: Another feature with which it is aligned item by item. It has the length of that feature and is
        trimmed and packed with it. 0 is an ordinary value, not padding.
      length: Fixed number of items per example; none of them is padding.
      dtype: Type of the values. A `float32` value is never padding, and can only be read with the role `tokens`.
      length_key: Key of `TASK_FEATURE_LENGTHS` with its maximum length, if that is not its name: the choices
        `inputs_0`, `inputs_1`, … have the length of `inputs`.
      num_labels: Number of labels if the values are indices of labels; a value below 0 is an unknown label.
      inner: Number of values per item, such as the characters of a word, if an example is `[length, inner]`. An item
        whose values are all padding is padding. None for one value per item.
      num_ids: Number of ids of the values if they are not those of the model's vocabulary, such as characters.
    """

    name: str
    aligned_with: str | None = None
    length: int | None = None
    dtype: DType = "int32"
    length_key: str | None = None
    num_labels: int | None = None
    # Not in the repr, so that specs without it keep the digests in stored positions and teacher logits.
    inner: int | None = dataclasses.field(default=None, repr=False)
    # Not compared either, as specs that are read from caches do not have it.
    num_ids: int | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self):
        if self.dtype not in get_args(DType):
            raise ValueError(
                f"task feature {self.name!r}: dtype={self.dtype!r} is not supported. Give "
                f"{' or '.join(get_args(DType))}."
            )
        lengths = {"aligned_with": self.aligned_with, "length": self.length, "length_key": self.length_key}
        given = [f"{name}={value!r}" for name, value in lengths.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"task feature {self.name!r}: {' and '.join(given)} exclude each other. Give one of them.")
        if not given and self.dtype == "int32" and self.inner is None:
            raise ValueError(
                f"task feature {self.name!r}: it is an ordinary sequence of token ids. Remove it, or give "
                "`aligned_with`, `length`, `length_key`, `inner` or a dtype other than int32."
            )
        if self.inner is not None and (self.inner < 1 or self.length is not None or self.num_labels is not None):
            raise ValueError(
                f"task feature {self.name!r}: inner={self.inner!r} is not a positive integer, or the feature has a "
                "fixed length or labels. Give `inner` to sequences of several values per item."
            )
