"""SentencePiece of XLNet."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies import text_rules
from t5x_like.vocabularies.tokenizers.base import PUNCTUATION, Layout, TokenizerClass

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary
    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def build(files: "TokenizerFiles") -> "Vocabulary":
    """Returns a SentencePiece vocabulary that may divide numbers."""
    from t5x_like.vocabularies import sentencepiece_files
    from t5x_like.vocabularies.hugging_face_sentencepiece import XLNetVocabulary

    lower_case, accents = files.config.get("do_lower_case", False), files.config.get("keep_accents", False)
    model, contents = sentencepiece_files.model_of(files)
    rules = text_rules.albert(lower_case, keep_accents=accents)
    return XLNetVocabulary(model, rules, contents=contents, divides_numbers=not files.tokenizer)


TOKENIZERS = (
    TokenizerClass(
        name="XLNetTokenizer",
        files=("spiece.model",),
        special_tokens={role: f"<{role}>" for role in ("unk", "sep", "pad", "cls", "mask")}
        | {"bos": "<s>", "eos": "</s>"},
        model_types=("xlnet",),
        build=build,
    ),
)
# zihangdai/xlnet.
LAYOUTS = {
    "xlnet": Layout(
        ids={"unk": 0, "bos": 1, "eos": 2, "pad": -1},
        control=("<cls>", "<sep>", "<pad>", "<mask>", "<eod>"),
        user_defined=("<eop>", *PUNCTUATION),
        rules=text_rules.albert,  # XLNet changes text in the same way
        lower_case=False,
        tokenizer={"tokenizer_class": "XLNetTokenizer"},
    ),
}
