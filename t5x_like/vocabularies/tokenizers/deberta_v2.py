"""SentencePiece of DeBERTa v2 and v3."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers.base import ADDED_TOKENS, CONFIG, DEBERTA, TokenizerClass

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary
    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def build(files: "TokenizerFiles") -> "Vocabulary":
    """Returns a SentencePiece vocabulary with a [MASK] after its pieces."""
    from t5x_like.vocabularies import from_tokenizer_json, sentencepiece_files
    from t5x_like.vocabularies.hugging_face_sentencepiece import DebertaV2Vocabulary

    for key in ("do_lower_case", "split_by_punct"):
        if files.config.get(key, False):
            raise files.unsupported(CONFIG, key, True, "false")
    tokens, (model, contents) = files.special_tokens(), sentencepiece_files.model_of(files)
    spaces = None if contents is None else from_tokenizer_json.sentencepiece_spaces(files)
    vocabulary = DebertaV2Vocabulary(
        model, tokens, contents=contents, **({} if spaces is None else sentencepiece_files.prepared(spaces))
    )
    ids, name = vocabulary.token_ids, model.rpartition("/")[2]
    for role, token in tokens.items():
        if token not in ids:
            raise files.unsupported(CONFIG, f"{role}_token", token, f"pieces of {name} and [MASK]")
    for token, index in files.added_tokens(tokens).items():
        if ids.get(token) != index:
            raise files.unsupported(ADDED_TOKENS, token, index, f"special pieces of {name} and a [MASK] after them")
    return vocabulary


TOKENIZERS = (
    TokenizerClass(
        name="DebertaV2Tokenizer",
        files=("spm.model",),
        special_tokens=DEBERTA,
        model_types=("deberta-v2",),
        build=build,
    ),
)
