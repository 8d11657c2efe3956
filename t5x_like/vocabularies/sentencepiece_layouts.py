"""SentencePiece vocabularies with the special pieces of published models, for models that are trained from scratch.

The ids and the settings of the trainer are those of the released code; see the constants `LAYOUTS` of
`vocabularies.tokenizers`.
"""

import io
import itertools
import json
from collections.abc import Iterable

import sentencepiece

from t5x_like.vocabularies.tokenizers.base import CONFIG, Layout


def train(documents: Iterable[str], size: int, layout: Layout, lower_case: bool, threads: int) -> dict[str, bytes]:
    """Trains a unigram model with the pieces of a layout.

    Args:
      documents: text to train on.
      size: number of pieces, including special ones.
      layout: the special pieces.
      lower_case: whether the rules of the layout lower-case text.
      threads: number of threads of the trainer. The model may depend on it.

    Returns:
      The files of a Hugging Face directory.

    Raises:
      RuntimeError: SentencePiece cannot produce this number of pieces from this text.
    """
    model = io.BytesIO()
    if layout.rules is not None:
        documents = map(layout.rules(lower_case), documents)
    # The trainer takes a line as a sentence.
    lines = itertools.chain.from_iterable(document.splitlines() for document in documents)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_writer=model,
        model_type="unigram",
        vocab_size=size,
        character_coverage=layout.coverage,
        byte_fallback=layout.byte_fallback,
        control_symbols=list(layout.control),
        user_defined_symbols=list(layout.user_defined),
        max_sentence_length=1 << 20,
        num_threads=threads,
        minloglevel=2,
        **{f"{role}_id": index for role, index in layout.ids.items()},
    )
    settings = layout.tokenizer | ({} if layout.lower_case is None else {"do_lower_case": lower_case})
    return {layout.file: model.getvalue(), CONFIG: (json.dumps(settings, indent=2) + "\n").encode()}
