"""A Hugging Face directory of a small BERT with random weights and a WordPiece vocabulary of letters."""

import json
import string

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase, *string.digits, *",.!?'"]
PIECES += [f"##{piece}" for piece in (*string.ascii_lowercase, *string.digits)]


def write(directory, *, num_layers=1, labels=()):
    """Writes weights, configuration and tokenizer files to a new directory.

    Args:
      directory: The directory.
      num_layers: Number of layers of the encoder.
      labels: Labels of the classifier; without them, the directory has no head.
    """
    import jax

    from t5x_like import interop
    from t5x_like.models.bert import BertConfig
    from t5x_like.objectives import heads
    from t5x_like.objectives.sequence_classification import SequenceClassification

    sizes = {"embed_dim": 8, "mlp_dim": 16, "num_heads": 2, "head_dim": 4, "max_length": 64}
    config = BertConfig(vocab_size=len(PIECES), num_layers=num_layers, **sizes)
    params = {"model": config.make(jax.random.key(0))}
    if labels:
        classifier = SequenceClassification(labels, head=heads.PooledFirstToken())
        params["objective"] = classifier.init(jax.random.key(1), params["model"])
    interop.to_huggingface(params, config, str(directory), labels=labels)
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
