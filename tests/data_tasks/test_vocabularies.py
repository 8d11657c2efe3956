"""The earlier names of vocabularies, which task modules of users import."""

import subprocess
import sys

CODE = """
from data_tasks import vocabularies
from data_tasks.vocabularies import from_folder
from data_tasks.vocabularies.from_folder import from_folder as function
from data_tasks.vocabularies.late import LateVocabulary
from data_tasks.vocabularies.word_counts import WordCountsVocabulary
import t5x_like.vocabularies.from_folder, t5x_like.vocabularies.late, t5x_like.vocabularies.word_vocabularies

assert from_folder is t5x_like.vocabularies.from_folder and function is from_folder.from_folder
assert LateVocabulary is t5x_like.vocabularies.late.LateVocabulary
assert WordCountsVocabulary is t5x_like.vocabularies.word_vocabularies.WordCountsVocabulary
assert vocabularies.python_docs().vocab_size == 1024
"""


def test_earlier_names_are_the_same_classes():
    subprocess.run([sys.executable, "-c", CODE], check=True)
