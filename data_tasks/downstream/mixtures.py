"""Mixtures with the names and rates of the t5 package (`data/mixtures.py`, `data/glue_utils.py`).

`RATES` replaces the rates, and mixes other tasks; see docs/mixtures.md.
"""

from collections.abc import Callable, Mapping, Sequence

import seqio

from data_tasks.corpora import c4  # noqa: F401 (it registers tasks)
from data_tasks.downstream import (  # noqa: F401 (they register the tasks)
    glue,
    pronoun_resolution,
    squad,
    summarization,
    super_glue,
    translation,
    trivia_qa,
)

# Numbers of training examples. WNLI is left out, as in the t5 package. Tasks of rate 0 are only evaluated.
GLUE_RATES = {
    "glue_cola_v002": 8551.0,
    "glue_sst2_v002": 67349.0,
    "glue_mrpc_v002": 3668.0,
    "glue_qqp_v002": 363849.0,
    "glue_stsb_v002": 5749.0,
    "glue_mnli_v002": 392702.0,
    "glue_qnli_v002": 104743.0,
    "glue_rte_v002": 2490.0,
    "glue_mnli_mismatched_v002": 0.0,
    "glue_mnli_matched_v002": 0.0,
    "glue_ax_v002": 0.0,
}

SUPER_GLUE_RATES = {
    "dpr_v001_simple": 1322.0,
    "super_glue_wsc_v102_simple_train": 259.0,
    "super_glue_wsc_v102_simple_eval": 0.0,
    "super_glue_boolq_v102": 9427.0,
    "super_glue_cb_v102": 250.0,
    "super_glue_copa_v102": 400.0,
    "super_glue_multirc_v102": 27243.0,
    "super_glue_record_v102": 138854.0,
    "super_glue_rte_v102": 2490.0,
    "super_glue_wic_v102": 5428.0,
    "super_glue_axb_v102": 0.0,
    "super_glue_axg_v102": 0.0,
}

_RATES = GLUE_RATES | SUPER_GLUE_RATES
UNSUPERVISED = "c4_v020_unsupervised"
UNSUPERVISED_RATE = 1e6
TRANSLATION = ("wmt_t2t_ende_v003", "wmt15_enfr_v003", "wmt16_enro_v003")
SUPERVISED = (*_RATES, "cnn_dailymail_v002", "squad_v010_allanswers", *TRANSLATION)
_LARGE_TRANSLATION = ("wmt_t2t_ende_v003", "wmt15_enfr_v003")
_PRONOUNS = ("dpr_v001_simple", "super_glue_wsc_v102_simple_train", "super_glue_wsc_v102_simple_eval")
_LARGE = (*_LARGE_TRANSLATION, "cnn_dailymail_v002")

Rate = float | Callable[[seqio.Task], float]


def examples(task: seqio.Task) -> float:
    """Returns the number of training examples of a task; 0 if it has no training split: it is only evaluated."""
    return seqio.mixing_rate_num_examples(task) if "train" in task.splits else 0.0


def _in_proportion(names: Sequence[str], *, halve_rte: bool = True) -> dict[str, Rate]:
    """Returns the rates of tasks: the rates of their benchmark, or else their numbers of examples.

    Args:
      names: the names of tasks.
      halve_rte: whether to halve the rates of the two tasks of RTE, as both GLUE and SuperGLUE are mixed.
    """
    rates: dict[str, Rate] = {name: _RATES.get(name, examples) for name in names}
    if halve_rte:
        rates |= {name: _RATES[name] / 2 for name in ("glue_rte_v002", "super_glue_rte_v102") if name in rates}
    return rates


def _add(name: str, rates: Mapping[str, Rate]) -> None:
    seqio.MixtureRegistry.add(name, list(rates.items()))


def _add_leave_one_out() -> None:
    """Registers mixtures of all tasks but one, with each benchmark as one task."""
    for benchmark, left_out in (
        ("glue_v002_proportional", GLUE_RATES),
        ("super_glue_v102_proportional", SUPER_GLUE_RATES),
    ):
        names = [name for name in (*SUPERVISED, UNSUPERVISED) if name not in left_out]
        _add(f"leave_one_out_{benchmark}", _in_proportion(names, halve_rte=False))
    for left_out in SUPERVISED[len(_RATES) :]:
        names = [name for name in (*SUPERVISED, UNSUPERVISED) if name != left_out]
        _add(f"leave_one_out_{left_out}", _in_proportion(names))


_add("glue_v002_proportional", GLUE_RATES)
_add("super_glue_v102_proportional", SUPER_GLUE_RATES)
_add("glue_mnli_and_dev_v002", {name: 1.0 for name in GLUE_RATES if "mnli" in name})
_add("wsc_dpr_simple_proportional", {name: SUPER_GLUE_RATES[name] for name in _PRONOUNS})
_add(
    "en_mix",
    {UNSUPERVISED: UNSUPERVISED_RATE} | dict.fromkeys((*_RATES, "squad_v010_allanswers"), examples),
)
_add("all_equal", dict.fromkeys((*SUPERVISED, UNSUPERVISED), 1.0))
_add("all_proportional", _in_proportion((*SUPERVISED, UNSUPERVISED)))
_add("all_mix", {UNSUPERVISED: UNSUPERVISED_RATE} | _in_proportion(SUPERVISED))
_add("large_supervised_equal", dict.fromkeys(_LARGE, 1.0))
_add("large_supervised_proportional", dict.fromkeys(_LARGE, examples))
_add("large_translation_equal", dict.fromkeys(_LARGE_TRANSLATION, 1.0))
_add("squad_trivia_qa_equal", dict.fromkeys(("squad_v010_allanswers", "trivia_qa_v010"), 1.0))
_add_leave_one_out()
