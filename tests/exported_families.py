"""Hugging Face directories of small models of every family with random weights, and with a tokenizer of its kind."""

import dataclasses
import io
import json
import random
import string
from collections.abc import Callable
from typing import Any

import families
import numpy as np

from t5x_like import interop, parameters
from t5x_like.models import build

POSITIONS = 64
WORDS = "river stone light paper garden window table north bread winter letter summer bridge forest engine".split()
_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]
_DEBERTA = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]


def sentences(number=400, seed=0):
    """Returns texts of which vocabularies are made, and from which the rows of tasks are drawn."""
    draw = random.Random(seed)
    others = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 7))) for _ in range(60)]
    words = [*WORDS, *others]
    return [
        f"The {draw.choice(words)} and the {draw.choice(words)} were near {draw.choice(words)}s." for _ in range(number)
    ]


def trained(kind, size, **settings):
    """Returns a function that trains a vocabulary as `t5x_like vocabulary` does."""

    def files():
        from data_tasks.vocabulary_training import trainers

        return trainers.KINDS[kind](sentences(), size, **settings)

    return files


def byte_pieces(before, tokenizer_class, **settings):
    """Returns a function that makes a vocabulary of bytes with a few merges, as that of RoBERTa, BART and DeBERTa."""

    def files():
        found = trained("byte_bpe", 300)()
        pieces = [piece for piece in json.loads(found["vocab.json"]) if piece != "<|endoftext|>"]
        pieces = [*before, *pieces, "<mask>" if before is _ROBERTA else "[MASK]"]
        config = json.dumps({"tokenizer_class": tokenizer_class, **settings}).encode()
        vocabulary = json.dumps({piece: number for number, piece in enumerate(pieces)}).encode()
        return {"vocab.json": vocabulary, "merges.txt": found["merges.txt"], "tokenizer_config.json": config}

    return files


def generic(*special, beginning, separator, **settings):
    """Returns a function that makes a tokenizer.json of bytes with a few merges, which no class of its own reads.

    Args:
      special: the special tokens in the order of their ids.
      beginning: the first token of a row.
      separator: the token after each text.
      settings: further entries of tokenizer_config.json.
    """

    def files():
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
        from tokenizers.trainers import BpeTrainer

        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = BpeTrainer(vocab_size=300, special_tokens=list(special), initial_alphabet=alphabet)
        made.train_from_iterator(sentences(), trainer)
        if mask := settings.get("mask_token"):
            made.add_special_tokens([AddedToken(mask, lstrip=True)])
        made.post_processor = processors.TemplateProcessing(
            single=f"{beginning} $A {separator}",
            pair=f"{beginning} $A {separator} $B:1 {separator}:1",
            special_tokens=[(token, made.token_to_id(token)) for token in (beginning, separator)],
        )
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
        return {"tokenizer.json": made.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()}

    return files


def sentence_pieces(name, tokenizer_class, size=90, **special):
    """Returns a function that trains a SentencePiece model with the special pieces of a published one."""

    def files():
        import sentencepiece

        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences()), model_writer=model, vocab_size=size, minloglevel=2, **special
        )
        config = json.dumps({"tokenizer_class": tokenizer_class}).encode()
        return {name: model.getvalue(), "tokenizer_config.json": config}

    return files


def word_pieces(tokenizer_class):
    """Returns a function that trains a WordPiece vocabulary."""

    def files():
        config = json.dumps({"tokenizer_class": tokenizer_class, "do_lower_case": True}).encode()
        return trained("wordpiece", 120)() | {"tokenizer_config.json": config}

    return files


@dataclasses.dataclass(frozen=True)
class Start:
    """What a run starts from.

    Attributes:
      tokenizer: returns the files of the tokenizer.
      changes: fields of the configuration of `family_cases` to replace.
      ids: number of ids of the model beyond those of the files.
      tokens: special token ids by key, as config.json of the published models has them.
      generating: seed and standard deviation of random weights with which texts do not end at once, nor are the same.
    """

    tokenizer: Callable[[], dict[str, bytes]]
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    ids: int = 0
    tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    generating: tuple[int, float] = (0, 0.5)


_EXACT = {"activations": ("gelu_exact",)}
_LLAMA = sentence_pieces(
    *("tokenizer.model", "LlamaTokenizer"),
    model_type="bpe",
    byte_fallback=True,
    size=400,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
)
_GEMMA = sentence_pieces(
    *("tokenizer.model", "GemmaTokenizer"),
    **dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>"),
    model_type="bpe",
    byte_fallback=True,
    size=400,
    normalization_rule_name="identity",
    add_dummy_prefix=False,
    remove_extra_whitespaces=False,
)
_GEMMA_IDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
_END = "<|endoftext|>"
_T5 = sentence_pieces("spiece.model", "T5Tokenizer", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
_BART_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
STARTS = {
    "bert": Start(word_pieces("BertTokenizer"), _EXACT),
    "roberta": Start(byte_pieces(_ROBERTA, "RobertaTokenizer")),
    "distilbert": Start(word_pieces("DistilBertTokenizer")),
    "electra": Start(word_pieces("ElectraTokenizer"), _EXACT),
    "mobilebert": Start(word_pieces("BertTokenizer")),
    "albert": Start(trained("albert", 100)),
    # Rows have dense attention up to 72 tokens, by the row here, and by the batch in transformers.
    "bigbird": Start(trained("bigbird", 200), {"block_size": 8, "num_random_blocks": 2}),
    "xlnet": Start(trained("xlnet", 100)),
    "deberta": Start(byte_pieces(_DEBERTA, "DebertaTokenizer")),
    "deberta_v2": Start(
        sentence_pieces(
            *("spm.model", "DebertaV2Tokenizer"),
            **dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3),
            **dict(pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]"),
        ),
        ids=1,  # [MASK]
    ),
    "longformer": Start(byte_pieces(_ROBERTA, "RobertaTokenizer"), _EXACT),
    "modernbert": Start(
        generic(
            *("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"),
            **dict(beginning="[CLS]", separator="[SEP]"),
            **dict(cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"),
        ),
        {"padding_id": 2},
        tokens={"bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 1, "sep_token_id": 1},
    ),
    "t5_1_0": Start(_T5, ids=100, generating=(2, 1.0)),
    "t5_1_1": Start(_T5, ids=100),
    "bart": Start(
        byte_pieces(_ROBERTA, "BartTokenizer"),
        _EXACT,
        tokens=_BART_IDS | {"forced_eos_token_id": 2},
        generating=(0, 1.0),
    ),
    "gpt2": Start(trained("byte_bpe", 300), tokens={"bos_token_id": 0, "eos_token_id": 0}),
    "llama": Start(_LLAMA, tokens={"bos_token_id": 1, "eos_token_id": 2}),
    "mistral": Start(_LLAMA, tokens={"bos_token_id": 1, "eos_token_id": 2}),
    "qwen3": Start(
        byte_pieces((_END,), "Qwen2Tokenizer", eos_token=_END, pad_token=_END),
        tokens={"bos_token_id": 0, "eos_token_id": 0},
    ),
    "gemma2": Start(_GEMMA, tokens=_GEMMA_IDS),
    "gemma3": Start(_GEMMA, tokens=_GEMMA_IDS),
    "t5gemma": Start(_GEMMA, tokens=_GEMMA_IDS, generating=(16, 0.7)),
}


def count_ids(files, further):
    """Returns the number of ids of a vocabulary."""
    import sentencepiece

    if "tokenizer.json" in files:
        return len(json.loads(files["tokenizer.json"])["model"]["vocab"])
    if "vocab.txt" in files:
        return files["vocab.txt"].decode().count("\n")
    if "vocab.json" in files:
        return max(json.loads(files["vocab.json"]).values()) + 1
    (model,) = [contents for name, contents in files.items() if name.endswith(".model")]
    return sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size() + further


def write(name, directory, *, generates=False):
    """Writes the directory of a family, with other random weights for a model that generates texts."""
    from t5x_like.models.special_tokens import SpecialTokens

    start, case = STARTS[name], families.FAMILIES[name]
    files = start.tokenizer()
    changes = {"vocab_size": count_ids(files, start.ids), **case.huggingface_sizes}
    own = {field.name for field in dataclasses.fields(case.config)}
    if "max_length" in own:
        changes["max_length"] = POSITIONS
    for stack in own & case.config.parts.keys():
        # Inputs are not longer than a window, beyond which cached generation of transformers 4 differs from its own
        # without a cache. Logits far from their limit are not equal.
        sizes = {"max_length": POSITIONS, "attention_windows": (32, None), "final_softcap": 30.0}
        changes[stack] = dataclasses.replace(case.config.parts[stack], **sizes)
    ids = dict(start.tokens)
    if name == "gpt2":
        last = json.loads(files["vocab.json"])["<|endoftext|>"]
        ids = {key: last for key in ids}
    if ids:
        changes["special_tokens"] = SpecialTokens(ids)
    config = dataclasses.replace(case.config, **{**changes, **start.changes}, scan_layers=True)
    # Random weights of a size with which the predictions of different texts differ.
    seed, scale = start.generating if generates else (0, 0.5)
    draw, leaves = np.random.default_rng(seed), {}
    for each, shape in parameters.named_leaves(build.stacked_shapes(config)).items():
        noise = scale * draw.standard_normal(shape.shape).astype(np.float32)
        leaves[f"model/{each}"] = 1 + noise if each.endswith("scale") else noise
    if name == "mobilebert":
        # Its norms do not divide by a standard deviation, so that rounding errors grow with the states.
        leaves = {key: leaf if key.endswith("scale") else 0.4 * leaf for key, leaf in leaves.items()}
        leaves["model/token_embedder/embedding"][0] = 0  # of padding, as PyTorch initializes it
    interop.to_huggingface(leaves, config, str(directory))
    for file, contents in files.items():
        (directory / file).write_bytes(contents)
    return config
