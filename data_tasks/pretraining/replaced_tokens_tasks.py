"""Data of ELECTRA: masked tokens in blocks of whole sentences."""

from data_tasks.pretraining.electra_masking import ElectraMasking
from data_tasks.pretraining.sentence_blocks import sentence_blocks
from data_tasks.pretraining.sentence_tasks import add_tasks

add_tasks("replaced_tokens", ElectraMasking, examples=sentence_blocks, features=())
