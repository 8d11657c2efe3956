"""Finds tasks that lose much of a user's own documents or examples."""

from t5x_like.data import task_arguments
from t5x_like.data.features import FeatureSpec
from t5x_like.data.seqio_feed import lost_text, truncated_examples
from t5x_like.data.seqio_feed.task_access import TaskAccess


def find(source: TaskAccess, spec: FeatureSpec) -> list[str]:
    """Returns warnings about tasks over documents (`pattern`) and over files of examples (`train`).

    Args:
      source: Task or mixture, lengths and split.
      spec: Features that the objective reads.
    """
    names = {task.name: task_arguments.names(task.name) for task in source.tasks}
    kept = lost_text.measure(source, spec) if any("pattern" in given for given in names.values()) else []
    of_examples = [each for each in source.per_task() if "train" in names[each.mixture_or_task_name]]
    found = [problem for each in kept for problem in each.problems()]
    return found + [problem for each in of_examples for problem in truncated_examples.problems(each, spec)]
