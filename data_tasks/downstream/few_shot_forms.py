"""How tasks are written as text for in-context evaluation: the forms of GPT-2 and GPT-3.

The sources are Radford et al. 2019 (GPT-2, sections 3.6 to 3.8: `TL;DR:`, `a = b`, questions and answers), Brown et al.
2020 (GPT-3, appendix G) and, for SST-2, Zhao et al. 2021 ("Calibrate before use", appendix). The forms `question` and
`grammar` are written in the manner of GPT-3, whose paper does not evaluate these tasks; the form of MNLI is taken from
ANLI. A task without a form of its own has its text-to-text inputs, followed by `answer:` on the next line.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Form:
    """The text of an example, made from the `inputs` and `targets` of a text-to-text task.

    Attributes:
      inputs: pairs of a regular expression (RE2) and its replacement, applied to `inputs` in order.
      answer_prefix: text between the inputs and the targets. The prompt ends before the spaces at its end, which belong
        to the first token of the targets.
      separator: text between two examples.
      description: text before the first example, followed by a separator; empty for none.
      words: pairs of a target of the task and the word that stands for it. Other targets stand for themselves.
    """

    inputs: tuple[tuple[str, str], ...] = ()
    answer_prefix: str = "\nanswer: "
    separator: str = "\n\n"
    description: str = ""
    words: tuple[tuple[str, str], ...] = ()

    @property
    def gap(self) -> str:
        """The whitespace between the prompt and the targets."""
        return self.answer_prefix[len(self.answer_prefix.rstrip()) :]


def _pair(first: str, second: str, text: str) -> tuple[tuple[str, str], ...]:
    r"""Return the replacement of `task first: A second: B` by a text with \1 for A and \2 for B."""
    return ((rf"(?s)^\w+ {first}: (.*?)\s* {second}: (.*?)\s*$", text),)


def _only(name: str, text: str) -> tuple[tuple[str, str], ...]:
    r"""Return the replacement of `task name: A` by a text with \1 for A."""
    return ((rf"(?s)^\w+ {name}: (.*?)\s*$", text),)


_TRUE_FALSE = (("entailment", "True"), ("not_entailment", "False"))
_YES_NO = (("True", "yes"), ("False", "no"))
_MNLI = Form(
    _pair("hypothesis", "premise", "\\2\nquestion: \\1 True, False, or Neither?"),
    words=(("entailment", "True"), ("contradiction", "False"), ("neutral", "Neither")),
)
_SUMMARY = ((r"^summarize: ", ""),)
_QUESTION = ((r"^trivia_qa question: ", "Q: "),)
_TRANSLATION = {
    "gpt3": Form(((r"^translate \w+ to \w+: ", ""),), answer_prefix=" = "),
    "gpt3_zero_shot": Form(
        ((r"^translate \w+ to (\w+): ", "Q: What is the \\1 translation of "),), answer_prefix=" A: "
    ),
    "gpt2": Form(((r"^translate \w+ to \w+: ", ""),), answer_prefix=" = ", separator="\n"),
}

FORMS: Mapping[str, Mapping[str, Form]] = {
    "glue_sst2_v002": {
        "calibrate": Form(_only("sentence", "Review: \\1"), "\nSentiment: "),
        "tldr": Form(_only("sentence", "\\1"), "\nTL;DR: "),
    },
    "glue_cola_v002": {
        "grammar": Form(
            _only("sentence", "\\1\nquestion: Is this sentence grammatical?"),
            words=(("acceptable", "yes"), ("unacceptable", "no")),
        )
    },
    "glue_rte_v002": {
        "gpt3": Form(_pair("sentence1", "sentence2", "\\1\nquestion: \\2 True or False?"), words=_TRUE_FALSE)
    },
    "glue_wnli_v002": {
        "gpt3": Form(_pair("sentence1", "sentence2", "\\1\nquestion: \\2 True or False?"), words=_TRUE_FALSE)
    },
    **{f"glue_{name}_v002": {"gpt3": _MNLI} for name in ("mnli", "mnli_matched", "mnli_mismatched")},
    "glue_mrpc_v002": {
        "question": Form(
            _pair("sentence1", "sentence2", "\\1\n\\2\nquestion: Do both sentences say the same?"),
            words=(("equivalent", "yes"), ("not_equivalent", "no")),
        )
    },
    "glue_qqp_v002": {
        "question": Form(
            _pair("question1", "question2", "\\1\n\\2\nquestion: Do both ask the same?"),
            words=(("duplicate", "yes"), ("not_duplicate", "no")),
        )
    },
    "glue_qnli_v002": {
        "question": Form(
            _pair("question", "sentence", "\\2\nquestion: Does this answer the question: \\1"),
            words=(("entailment", "yes"), ("not_entailment", "no")),
        )
    },
    "super_glue_boolq_v102": {"gpt3": Form(_pair("passage", "question", "\\1\nquestion: \\2?"), words=_YES_NO)},
    "super_glue_cb_v102": {
        "gpt3": Form(
            _pair("hypothesis", "premise", "\\2\nquestion: \\1. true, false, or neither?"),
            words=(("entailment", "true"), ("contradiction", "false"), ("neutral", "neither")),
        )
    },
    "super_glue_rte_v102": {
        "gpt3": Form(_pair("hypothesis", "premise", "\\2\nquestion: \\1 True or False?"), words=_TRUE_FALSE)
    },
    "trivia_qa_closed_book": {"gpt3": Form(_QUESTION, "\nA: "), "gpt2": Form(_QUESTION, "\nA: ", "\n")},
    **{
        f"squad_{name}_allanswers": {
            "gpt3": Form(((r"(?s)^question: (.*?)\s* context: (.*?)\s*$", "Background: \\2\n\nQ: \\1"),), "\n\nA: "),
            "gpt2": Form(((r"(?s)^question: (.*?)\s* context: (.*?)\s*$", "\\2\nQ: \\1"),), "\nA: "),
        }
        for name in ("v010", "v2")
    },
    **{name: {"gpt2": Form(_SUMMARY, "\nTL;DR: ")} for name in ("cnn_dailymail_v002", "xsum")},
    **{
        name: _TRANSLATION
        for name in ("parallel_text", *(f"wmt{pair}_v003" for pair in ("14_ende", "14_enfr", "15_enfr", "16_enro")))
    },
}
"""Task -> name of the form -> form. The first form is the default."""

PLAIN: Mapping[str, Form] = {"plain": Form()}
"""The form of other tasks."""
