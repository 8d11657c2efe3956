"""Hugging Face directories of small models with random weights, and with vocabularies of letters or bytes."""

import dataclasses
import json
import string

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase, *string.digits, *",.!?'"]
PIECES += [f"##{piece}" for piece in (*string.ascii_lowercase, *string.digits)]
# Sizes of all models: fields of a config.
SIZES = {"embed_dim": 8, "mlp_dim": 16, "num_heads": 2, "head_dim": 4}
END_OF_TEXT = "<|endoftext|>"
GPT2_IDS = 257
BOS_ID = 256
T5_IDS = 256
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
    from data_tasks.vocabularies.byte_bpe import byte_letters
    from t5x_like.models.gpt import GPTConfig

    _write(directory, GPTConfig(vocab_size=GPT2_IDS, num_layers=num_layers, max_length=64, **SIZES))
    ids = {letter: number for number, letter in enumerate([*byte_letters().values(), END_OF_TEXT])}
    (directory / "vocab.json").write_text(json.dumps(ids))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    _write_settings(directory, tokenizer_class="GPT2Tokenizer", **special)


def write_t5(directory, *, num_layers=1):
    """Writes a T5 1.0 whose pieces are letters.

    Args:
      directory: The directory, which must not exist.
      num_layers: Number of layers of the encoder and of the decoder.
    """
    import sentencepiece

    from t5x_like.models.t5 import T5Config

    layers = {"encoder_layers": num_layers, "decoder_layers": num_layers}
    _write(directory, T5Config(vocab_size=T5_IDS, activations=("relu",), tied_embeddings=True, **layers, **SIZES))
    with open(directory / "spiece.model", "wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([string.ascii_letters + string.digits + string.punctuation]),
            model_writer=model,
            model_type="char",
            vocab_size=T5_IDS - _T5_SENTINELS,
            hard_vocab_limit=False,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=2,
        )
    _write_settings(directory, tokenizer_class="T5Tokenizer", extra_ids=_T5_SENTINELS)


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
