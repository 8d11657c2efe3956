"""Word pieces: BERT, DistilBERT, ELECTRA and MobileBERT."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers.base import BERT, CONFIG, TOKENIZER, WORDPIECE, TokenizerClass

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary
    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def build(files: "TokenizerFiles") -> "Vocabulary":
    """Returns a vocabulary of word pieces."""
    from t5x_like.vocabularies import from_tokenizer_json
    from t5x_like.vocabularies.wordpiece import WordPieceVocabulary

    normalizer = from_tokenizer_json.bert_normalizer(files)
    if files.config.get("do_lower_case") is None and normalizer.get("lowercase") is None:
        raise files.error(CONFIG, "do_lower_case", "not found. Set it to true for an uncased model, else to false")
    lower_case = files.setting("do_lower_case", normalizer.get("lowercase"), True)
    for key, supported in (("do_basic_tokenize", True), ("never_split", None)):
        if files.config.get(key, supported) != supported:
            raise files.unsupported(CONFIG, key, files.config[key], str(supported))
    known = BERT
    tokens = files.special_tokens(known)
    for role, token in tokens.items():
        if token != known.get(role):
            raise files.unsupported(CONFIG, f"{role}_token", token, str(known.get(role)))
    vocabulary = WordPieceVocabulary(
        files.path(TOKENIZER if files.tokenizer else WORDPIECE),
        lower_case,
        strip_accents=files.setting("strip_accents", normalizer.get("strip_accents"), lower_case),
        split_cjk=files.setting("tokenize_chinese_chars", normalizer.get("handle_chinese_chars"), True),
        compose=False,
    )
    files.require_pieces(tokens, vocabulary.pieces)
    return vocabulary


TOKENIZERS = tuple(
    TokenizerClass(name=name, files=(WORDPIECE,), special_tokens=BERT, model_types=(model_type,), build=build)
    for name, model_type in (
        ("BertTokenizer", "bert"),
        ("DistilBertTokenizer", "distilbert"),
        ("ElectraTokenizer", "electra"),
        ("MobileBertTokenizer", "mobilebert"),
    )
)
