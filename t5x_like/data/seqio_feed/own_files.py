"""Checks the files of a user: whether their text reaches the rows of a run."""

from t5x_like.data import task_arguments
from t5x_like.data.features import FeatureSpec
from t5x_like.data.seqio_feed import cut_examples
from t5x_like.data.seqio_feed.task_access import TaskAccess

# An argument of tasks that divide the documents of files, and one of tasks whose files have an example per record.
DOCUMENTS, RECORDS = "pattern", "train"


def problems(source: TaskAccess, spec: FeatureSpec) -> list[str]:
    """Returns what is wrong if much of the first documents or examples reaches no row.

    Args:
      source: Task or mixture, lengths and split.
      spec: Features that the objective reads.
    """
    names, found = {task.name: task_arguments.names(task.name) for task in source.tasks}, []
    if any(DOCUMENTS in given for given in names.values()):
        from t5x_like.data.seqio_feed import lost_text  # imports TensorFlow

        found = [problem for kept in lost_text.measure(source, spec) for problem in kept.problems()]
    if any(RECORDS in given for given in names.values()):
        of_records = (each for each in source.per_task() if RECORDS in names[each.name])
        found += [problem for each in of_records for problem in cut_examples.problems(each, spec)]
    return found
