"""Trains the committed SentencePiece model on the corpus `python_docs`.

    python -m data_tasks.vocabularies.train [OUTPUT]

The text of the corpus depends a little on the version of Python, so another version gives a slightly different model;
the committed one is from CPython 3.11.7 and is used with all of them.
"""

import io
import sys
import tempfile
from collections.abc import Iterable, Iterator

import sentencepiece

from data_tasks import python_docs
from data_tasks.documents import TRAIN
from data_tasks.vocabularies import PYTHON_DOCS_MODEL, SENTINELS

# With the sentinels that SeqIO appends, the embedding has 1,024 rows: few, so that a small model learns each of them
# from two megabytes of text.
PIECES = 1024 - SENTINELS
# Text stays as it is but for U+2581, which is SentencePiece's own sign for a space and comes back as one in any case.
# With no rule at all (`identity`) TensorFlow's tokeniser writes a line about that to the terminal each time it is made.
_RULES = "2581\t20\n"


def train(documents: Iterable[str], pieces: int = PIECES, *, threads: int = 1) -> bytes:
    """A serialised SentencePiece model for T5: pad 0, EOS 1, unknown 2, and every text survives the way there and back.

    Args:
      documents: text to learn from.
      pieces: how many, special ones and the 256 bytes included.
      threads: of the trainer; another number may give another model.

    Raises:
      RuntimeError: SentencePiece cannot make so many or so few pieces of this text.
    """
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write(_RULES)
        rules.flush()
        _train(iter(documents), model, pieces, rules.name, threads)
    return model.getvalue()


def _train(documents: Iterator[str], model: io.BytesIO, pieces: int, rules: str, threads: int) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=documents,
        model_writer=model,
        model_type="unigram",
        vocab_size=pieces,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        # What no piece covers is spelt in bytes; nothing in a text is rewritten, and runs of spaces are pieces.
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_tsv=rules,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["\n"],
        split_digits=True,
        max_sentence_length=1 << 20,
        num_threads=threads,
        minloglevel=2,
    )


def main(output: str = str(PYTHON_DOCS_MODEL)) -> None:
    corpus = python_docs.read()
    print(corpus.describe())
    model = train(document.decode() for document in corpus.splits[TRAIN])
    with open(output, "wb") as file:
        file.write(model)
    print(f"{output}: {len(model):,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
