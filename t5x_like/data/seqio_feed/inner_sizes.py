"""Checks the inner sizes of a task's features, such as the number of characters of each word, against a spec."""

import re
from collections.abc import Sequence

import tensorflow as tf

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError

_MESSAGE = re.compile(r"[^\[]* values per item, but .*?in the task\.")


@tf.autograph.experimental.do_not_convert
def checked(ds: tf.data.Dataset, spec: FeatureSpec, data: str) -> tf.data.Dataset:
    """Checks examples whose inner sizes are static now, and the others when they are read.

    Args:
      ds: Examples with the task features of the spec.
      spec: Features that the objective reads.
      data: Name of the data, for messages.

    Returns:
      The examples, whose features with an inner dimension have a static inner size.

    Raises:
      UserError: a feature has another number of dimensions, or another inner size.
    """
    unknown = {}
    for name in spec.task_features:
        shape, size = ds.element_spec[name].shape, spec.inner_sizes.get(name)
        if shape.rank is not None:
            check_shape(shape.as_list(), size, data, name)
        if size is not None and shape.rank == 2 and shape[1] is None:
            unknown[name] = size
    if not unknown:
        return ds

    def check(example):
        found = dict(example)
        for name, size in unknown.items():
            before, _, after = _message(data, name, "FOUND values", size).partition("FOUND")
            message = tf.strings.join([before, tf.strings.as_string(tf.shape(example[name])[1]), after])
            with tf.control_dependencies([tf.Assert(tf.shape(example[name])[1] == size, [message])]):
                found[name] = tf.ensure_shape(tf.identity(example[name]), [None, size])
        return found

    return ds.map(check)


def check_shape(shape: Sequence[int | None], size: int | None, data: str, name: str) -> None:
    """Checks the shape of a feature of an example.

    Args:
      shape: Its shape; None for a size that is not known.
      size: Its inner size in the spec, or None for one value per item.
      data: Name of the data, for messages.
      name: The task feature.

    Raises:
      UserError: the feature has another number of dimensions, or another inner size.
    """
    wanted = [] if size is None else [size]
    found = list(shape[1:])
    if len(found) == len(wanted) and (found == wanted or found == [None]):
        return
    values = "one value" if not found else f"{found[0]} values" if len(found) == 1 else f"{found} values"
    raise UserError(_message(data, name, values, size))


def user_error(error: tf.errors.OpError) -> UserError | None:
    """Returns the `UserError` of a wrong inner size that was found on reading, or None for another error."""
    found = _MESSAGE.search(error.message)
    return found and UserError(found[0].replace("\\'", "'"))  # TensorFlow escapes quotes


def _message(data: str, name: str, found: str, size: int | None) -> str:
    reads = "one value" if size is None else f"{size}"
    return (
        f"{data}, task feature {name!r}: {found} per item, but the objective reads {reads}. Change the objective, or "
        "the shape of the feature in the task."
    )
