"""The average of GLUE and its submissions (https://gluebenchmark.com, `FAQ`), for both forms of its tasks."""

from data_tasks.downstream import glue
from data_tasks.downstream.submissions import Submission, attach, label_of, score, tsv

# As in the t5 package, the average has no WNLI, and both parts of MNLI count as one task.
GROUPS = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE")
_FILES = {
    **{"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "qqp": "QQP", "stsb": "STS-B", "qnli": "QNLI", "rte": "RTE"},
    **{"wnli": "WNLI", "ax": "AX", "mnli_matched": "MNLI-m", "mnli_mismatched": "MNLI-mm"},
}
_FILES_OF_MNLI = {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"}
# The labels of these tasks are submitted by name, labels of the others by index.
_NAMED = ("mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "ax")


def _submission(task: glue.GlueTask) -> Submission:
    if task.labels is None:
        values = score
    else:
        values = label_of(task.labels if task.name in _NAMED else range(len(task.labels)))
    return Submission(
        name="GLUE",
        group=task.folder if task.folder in GROUPS else None,
        groups=GROUPS,
        file_names=_FILES_OF_MNLI if task.name == "mnli" else {"test": f"{_FILES[task.name]}.tsv"},
        write=tsv(values),
    )


for _task in glue.TASKS:
    for _form in ("classification", "v002"):
        attach(f"glue_{_task.name}_{_form}", _submission(_task))
