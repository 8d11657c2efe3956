"""Hugging Face directories of small models with random weights, and with vocabularies of letters or bytes."""

import dataclasses
import json
import string

from byte_level import byte_letters

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase, *string.digits, *",.!?'"]
PIECES += [f"##{piece}" for piece in (*string.ascii_lowercase, *string.digits)]
# Sizes of all models: fields of a config.
SIZES = {"embed_dim": 8, "mlp_dim": 16, "num_heads": 2, "head_dim": 4}
END_OF_TEXT = "<|endoftext|>"
GPT2_IDS = 257
BOS_ID = 256
T5_IDS = 256
LLAMA_IDS = 128
_T5_SENTINELS = 100


def write_bert(directory, *, num_layers=1, labels=(), pretraining=False):
    """Writes a BERT: weights, configuration and tokenizer files.

    Args:
      directory: The directory, which must not exist.
      num_layers: Number of layers of the encoder.
      labels: Labels of the classifier; without them, the directory has no classifier.
      pretraining: Whether it has the heads of BERT's pretraining.
    """
    from t5x_like.models.bert import BertConfig
    from t5x_like.objectives import heads
    from t5x_like.objectives.joint import Joint
    from t5x_like.objectives.masked_lm import MaskedLM
    from t5x_like.objectives.next_sentence import NextSentence
    from t5x_like.objectives.sequence_classification import SequenceClassification

    objective = SequenceClassification(labels, head=heads.PooledFirstToken()) if labels else None
    if pretraining:
        objective = Joint([MaskedLM(), NextSentence()])
    # transformers runs BERT with exact GELU.
    sizes = SIZES | {"vocab_size": len(PIECES), "num_layers": num_layers, "max_length": 64}
    config = BertConfig(activations=("gelu_exact",), **sizes)
    _write(directory, config, objective, labels=labels)
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    _write_settings(directory, tokenizer_class="BertTokenizer", do_lower_case=True)


def write_gpt2(directory, *, num_layers=1):
    """Writes a GPT-2 whose pieces are bytes.

    Args:
      directory: The directory, which must not exist.
      num_layers: Number of layers.
    """
    from t5x_like.models.gpt import GPTConfig

    _write(directory, GPTConfig(vocab_size=GPT2_IDS, num_layers=num_layers, max_length=64, **SIZES))
    ids = {letter: number for number, letter in enumerate([*byte_letters(), END_OF_TEXT])}
    (directory / "vocab.json").write_text(json.dumps(ids))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    _write_settings(directory, tokenizer_class="GPT2Tokenizer", **special)


def write_bart(directory):
    """Writes a BART whose pieces are bytes, with the special token ids of bart-large: it generates <s> first.

    Args:
      directory: The directory, which must not exist.
    """
    from t5x_like.models.bart import BartConfig
    from t5x_like.models.special_tokens import SpecialTokens

    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    ids |= {"forced_bos_token_id": 0, "forced_eos_token_id": 2}
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *byte_letters(), "<mask>"]
    sizes = SIZES | {"vocab_size": len(pieces), "encoder_layers": 1, "decoder_layers": 1, "max_length": 32}
    config = BartConfig(activations=("gelu_exact",), special_tokens=SpecialTokens(tuple(ids.items()), None), **sizes)
    _write(directory, config)
    (directory / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    _write_settings(directory, tokenizer_class="BartTokenizer")


def write_t5(directory, *, num_layers=1):
    """Writes a T5 1.0 whose pieces are letters.

    Args:
      directory: The directory, which must not exist.
      num_layers: Number of layers of the encoder and of the decoder.
    """
    from t5x_like.models.t5 import T5Config

    layers = {"encoder_layers": num_layers, "decoder_layers": num_layers}
    _write(directory, T5Config(vocab_size=T5_IDS, activations=("relu",), tied_embeddings=True, **layers, **SIZES))
    _write_sentencepiece(directory / "spiece.model", T5_IDS - _T5_SENTINELS, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    _write_settings(directory, tokenizer_class="T5Tokenizer", extra_ids=_T5_SENTINELS)


def write_llama(directory):
    """Writes a Llama 2 whose pieces are letters, with the special token ids of the published models.

    Args:
      directory: The directory, which must not exist.
    """
    from t5x_like.models.llama import LlamaConfig
    from t5x_like.models.special_tokens import SpecialTokens

    ids = SpecialTokens((("bos_token_id", 1), ("eos_token_id", 2)), None)
    sizes = {"vocab_size": LLAMA_IDS, "num_layers": 1, "num_kv_heads": SIZES["num_heads"], "max_length": 32}
    _write(directory, LlamaConfig(special_tokens=ids, **sizes, **SIZES))
    settings = {"pad_id": -1, "eos_id": 2, "unk_id": 0, "bos_id": 1}
    settings |= {"remove_extra_whitespaces": False, "normalization_rule_name": "identity"}
    _write_sentencepiece(directory / "tokenizer.model", LLAMA_IDS, "bpe", **settings)
    _write_settings(directory, tokenizer_class="LlamaTokenizer")


def _write_sentencepiece(file, size, model_type="char", **settings):
    import sentencepiece

    with open(file, "wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([string.ascii_letters + string.digits + string.punctuation]),
            model_writer=model,
            model_type=model_type,
            vocab_size=size,
            hard_vocab_limit=False,
            minloglevel=2,
            **settings,
        )


def _write(directory, config, objective=None, labels=()):
    import jax

    from t5x_like import interop

    config = dataclasses.replace(config, scan_layers=True)  # initializes all layers at once
    params = {"model": config.make(jax.random.key(0))}
    if objective is not None:
        params["objective"] = objective.init(jax.random.key(1), params["model"])
    interop.to_huggingface(params, config, str(directory), labels=labels)


def _write_settings(directory, **settings):
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
