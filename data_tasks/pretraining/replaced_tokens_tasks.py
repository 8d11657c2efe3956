"""Data of ELECTRA: masked tokens in examples of two segments."""

import functools

from data_tasks.pretraining.electra_masking import ElectraMasking
from data_tasks.pretraining.segment_examples import segment_examples
from data_tasks.pretraining.sentence_tasks import add_tasks

for kind, masking in (
    ("replaced_tokens", ElectraMasking),
    # Positions are drawn with replacement, as in the released code.
    ("replaced_tokens_with_replacement", functools.partial(ElectraMasking, with_replacement=True)),
):
    add_tasks(kind, masking, examples=segment_examples, features=("token_types",))
