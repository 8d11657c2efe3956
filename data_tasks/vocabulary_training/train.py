"""Training of the shipped SentencePiece model on the corpus `python_docs`.

    python -m data_tasks.vocabulary_training.train [OUTPUT]

The text of the corpus differs slightly between versions of Python, and so does the model. The shipped one is from
CPython 3.11.7 and is used with all versions.
"""

import io
import sys
import tempfile
from collections.abc import Iterable, Iterator

import sentencepiece

from data_tasks.corpora import python_docs
from data_tasks.corpora.documents import TRAIN
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL, SENTINELS

# With the sentinels that SeqIO appends, the embedding has 1,024 rows. A small model can learn each of them from two
# megabytes of text.
PIECES = 1024 - SENTINELS
# Text is not normalized, except for U+2581, which SentencePiece uses to represent a space and decodes to one anyway.
# Without any rule (`identity`) the tokenizer of TensorFlow logs a line each time it is created.
_RULES = "2581\t20\n"


def train(documents: Iterable[str], pieces: int = PIECES, *, threads: int = 1, model_type: str = "unigram") -> bytes:
    """Trains a SentencePiece model for T5: padding 0, EOS 1, unknown 2. Decoding restores every text exactly.

    Args:
      documents: text to train on.
      pieces: number of pieces, including special ones and 256 bytes.
      threads: number of threads of the trainer. The model may depend on it.
      model_type: `unigram` (Kudo 2018) or `bpe` (Sennrich et al. 2016).

    Returns:
      The serialized model.

    Raises:
      RuntimeError: SentencePiece cannot produce this number of pieces from this text.
    """
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write(_RULES)
        rules.flush()
        _train(iter(documents), model, pieces, rules.name, threads, model_type)
    return model.getvalue()


def _train(documents: Iterator[str], model: io.BytesIO, pieces: int, rules: str, threads: int, model_type: str) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=documents,
        model_writer=model,
        model_type=model_type,
        vocab_size=pieces,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        # Characters without a piece are encoded as bytes. Text is not normalized, and runs of spaces are pieces.
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
    """Trains the model and writes it to a file."""
    corpus = python_docs.read()
    print(corpus.describe())
    model = train(document.decode() for document in corpus.splits[TRAIN])
    with open(output, "wb") as file:
        file.write(model)
    print(f"{output}: {len(model):,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
