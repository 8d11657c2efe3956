"""Word pieces: BERT, DistilBERT, ELECTRA and MobileBERT."""

from typing import TYPE_CHECKING

from t5x_like.vocabularies.tokenizers.base import BERT, CONFIG, WORDPIECE, TokenizerClass

if TYPE_CHECKING:
    import tokenizers

    from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles


def settings(files: "TokenizerFiles") -> dict[str, bool]:
    """Returns the settings of BERT's normalizer.

    Raises:
      UserError: tokenizer_config.json and tokenizer.json contradict each other, or none says whether to lower-case.
    """
    normalizer = files.tokenizer.get("normalizer") or {}
    if files.tokenizer and normalizer.get("type") != "BertNormalizer":
        return {}
    if files.config.get("do_lower_case") is None and normalizer.get("lowercase") is None:
        raise files.error(CONFIG, "do_lower_case", "not found. Set it to true for an uncased model, else to false")
    for key, supported in (("do_basic_tokenize", True), ("never_split", None)):
        if files.config.get(key, supported) != supported:
            raise files.unsupported(CONFIG, key, files.config[key], str(supported))
    lower_case = files.setting("do_lower_case", normalizer.get("lowercase"), True)
    return {
        "lower_case": lower_case,
        "strip_accents": files.setting("strip_accents", normalizer.get("strip_accents"), lower_case),
        "split_cjk": files.setting("tokenize_chinese_chars", normalizer.get("handle_chinese_chars"), True),
    }


def convert(files: "TokenizerFiles") -> "tokenizers.Tokenizer":
    """Returns a tokenizer of word pieces."""
    from t5x_like.vocabularies import converters, vocabulary_files

    path, tokens = files.path(WORDPIECE), files.special_tokens()
    made = converters.word_pieces(vocabulary_files.read_word_pieces(path), unknown=tokens["unk"], **settings(files))
    converters.surround_by_roles(made, converters.BERT_TEMPLATE, tokens, path)
    return made


TOKENIZERS = tuple(
    TokenizerClass(
        name=name, files=(WORDPIECE,), special_tokens=BERT, model_types=(model_type,), convert=convert, check=settings
    )
    for name, model_type in (
        ("BertTokenizer", "bert"),
        ("DistilBertTokenizer", "distilbert"),
        ("ElectraTokenizer", "electra"),
        ("MobileBertTokenizer", "mobilebert"),
    )
)
