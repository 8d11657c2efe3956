"""The resolved configuration of every shipped recipe and command, so that a review shows each changed hyperparameter.

`T5X_LIKE_UPDATE_GOLDENS=1 pytest tests/config/test_goldens.py` updates the files.
"""

import os
from pathlib import Path

import pytest

from t5x_like import config
from t5x_like.cli import COMMANDS
from t5x_like.cli.commands import RECIPES

GOLDENS = Path(__file__).parent / "goldens"
SMALL = "models/t5_1_1/small.gin"
CHECKPOINT = [("CHECKPOINT_PATH", "runs/1"), ("MIXTURE_OR_TASK_NAME", "a_task")]
TASK = [("MIXTURE_OR_TASK_NAME", "a_task")]
RUNS = {
    "quickstart": ("train", ["runs/quickstart.gin"], []),
    "pretrain": ("train", [SMALL, "runs/pretrain.gin"], [("MIXTURE_OR_TASK_NAME", "a_task"), ("TRAIN_STEPS", "10")]),
    "pretrain_adamw": (
        "train",
        [SMALL, "runs/pretrain.gin", "optimizers/adamw.gin"],
        [("MIXTURE_OR_TASK_NAME", "a_task"), ("TRAIN_STEPS", "20000")],
    ),
    "finetune": (
        "train",
        [SMALL, "runs/finetune.gin"],
        [("MIXTURE_OR_TASK_NAME", "a_task"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_classification": (
        "train",
        ["models/bert/base.gin", "runs/finetune_classification.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_magnitude": (
        "train",
        ["models/bert/base.gin", "runs/finetune_classification.gin", "compression/magnitude.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_layer_drop": (
        "train",
        ["models/bert/base.gin", "runs/finetune_classification.gin", "compression/layer_drop.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_movement": (
        "train",
        ["models/bert/base.gin", "runs/finetune_classification.gin", "compression/movement.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_xlnet": (
        "train",
        ["models/xlnet/base.gin", "runs/finetune_xlnet.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_xlnet_squad": (
        "train",
        ["models/xlnet/base.gin", "runs/finetune_xlnet_squad.gin"],
        [*TASK, ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_electra": (
        "train",
        ["models/electra/base.gin", "runs/finetune_electra.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_electra_squad": (
        "train",
        ["models/electra/base.gin", "runs/finetune_electra_squad.gin"],
        [*TASK, ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_regression": (
        "train",
        ["models/bart/base.gin", "runs/finetune_regression.gin"],
        [*TASK, ("HEAD", "@heads.DecoderLastToken()"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_tagging": (
        "train",
        ["models/roberta/base.gin", "runs/finetune_tagging.gin"],
        [*TASK, ("LABELS", "('O', 'B-x')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_span_extraction": (
        "train",
        ["models/bert/base.gin", "runs/finetune_span_extraction.gin"],
        [*TASK, ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_multiple_choice": (
        "train",
        ["models/bert/base.gin", "runs/finetune_multiple_choice.gin"],
        [*TASK, ("NUM_CHOICES", "4"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_gpt1": (
        "train",
        ["models/gpt1/base.gin", "runs/finetune_gpt1.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_unilm": (
        "train",
        ["models/unilm/base.gin", "runs/finetune_unilm.gin"],
        [*TASK, ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "prompt_tuning": (
        "train",
        [SMALL, "runs/finetune.gin", "adapters/prompt.gin", "optimizers/adafactor_prompt.gin"],
        [*TASK, ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "prefix_tuning": (
        "train",
        [SMALL, "runs/finetune.gin", "adapters/prefix.gin", "optimizers/adamw_prefix.gin"],
        [*TASK, ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "feature_based": (
        "train",
        ["models/bert/base.gin", "runs/finetune_classification.gin", "runs/feature_based.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "distilbert": (
        "train",
        ["students/distilbert.gin"],
        [*TASK, ("TRAIN_STEPS", "20000"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "pkd": (
        "train",
        ["models/bert/6_layers.gin", "students/pkd.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "eval": ("eval", [SMALL, "commands/eval.gin"], CHECKPOINT),
    "infer": (
        "infer",
        [SMALL, "commands/infer.gin"],
        [*CHECKPOINT, ("INPUT_PATH", "in.txt"), ("OUTPUT_PATH", "out.jsonl")],
    ),
    "augment": (
        "augment",
        ["models/bert/base.gin", "commands/augment.gin"],
        [
            *(("CHECKPOINT_PATH", "runs/1"), ("INPUT_PATH", "in.tsv"), ("OUTPUT_PATH", "out.tsv")),
            ("COLUMNS", "'sentence'"),
        ],
    ),
    "inspect": ("inspect", ["commands/inspect.gin"], [("MIXTURE_OR_TASK_NAME", "a_task")]),
    "clean": (
        "clean",
        ["commands/clean.gin", "corpora/c4_en.gin"],
        [("DATA_FILES", "crawl/*.wet.gz"), ("OUTPUT_PATH", "cleaned")],
    ),
    "vocabulary": ("vocabulary", ["commands/vocabulary.gin"], [("PATTERN", "books/*.txt")]),
    "cache": (
        "cache",
        ["commands/cache.gin", "runs/pretrain.gin"],
        [("MIXTURE_OR_TASK_NAME", "a_task"), ("CACHE_DIR", "caches/a_task")],
    ),
    "cache_logits": (
        "cache_logits",
        ["commands/cache_logits.gin"],
        [("CACHE_DIR", "a_cache"), ("TEACHER", "runs/1")],
    ),
    "pretrain_cached": (
        "train",
        [SMALL, "runs/pretrain.gin", "data/cached.gin"],
        [("CACHE_DIR", "caches/a_task"), ("TRAIN_STEPS", "10")],
    ),
    "pretrain_cached_mixture": (
        "train",
        [SMALL, "runs/pretrain.gin", "data/cached_mixture.gin"],
        [("CACHE_DIR", "caches/a_mixture"), ("TRAIN_STEPS", "10"), ("RATES", "@mixing.Rates()")],
    ),
    "bert": ("train", ["models/bert/base.gin", "runs/bert.gin"], TASK),
    "albert": ("train", ["models/albert/base.gin", "runs/albert.gin"], TASK),
    "structbert": ("train", ["models/bert/base.gin", "runs/structbert.gin"], TASK),
    "unilm": ("train", ["models/unilm/base.gin", "runs/unilm.gin"], TASK),
    "ernie": (
        "train",
        ["models/ernie/base.gin", "runs/ernie.gin"],
        [*TASK, ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "electra": ("train", ["models/electra/base.gin", "runs/electra.gin"], TASK),
    "electra_15": (
        "train",
        ["models/electra/base.gin", "runs/electra.gin", "objectives/electra_15.gin"],
        TASK,
    ),
    "replace_mlm": (
        "train",
        ["models/electra/base.gin", "runs/electra.gin", "objectives/replace_mlm.gin"],
        TASK,
    ),
    "all_tokens_mlm": (
        "train",
        ["models/electra/base.gin", "runs/electra.gin", "objectives/all_tokens_mlm.gin"],
        TASK,
    ),
    "two_stage_electra": (
        "train",
        ["models/electra/base.gin", "runs/electra.gin", "objectives/two_stage_electra.gin"],
        [*TASK, ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "xlnet": ("train", ["models/xlnet/base.gin", "runs/xlnet.gin"], TASK),
    "bigbird": ("train", ["models/bigbird/base.gin", "runs/bigbird.gin"], TASK),
    "finetune_bigbird": (
        "train",
        ["models/bigbird/base.gin", "runs/finetune_bigbird.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "bigbird_etc": ("train", ["models/bigbird_etc/base.gin", "runs/bigbird_etc.gin"], TASK),
    "finetune_bigbird_etc": (
        "train",
        ["models/bigbird_etc/base.gin", "runs/finetune_bigbird_etc.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_bigbird_etc_candidates": (
        "train",
        ["models/bigbird_etc/base.gin", "runs/finetune_bigbird_etc_candidates.gin"],
        [*TASK, ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_bigbird_etc_squad": (
        "train",
        ["models/bigbird_etc/base.gin", "runs/finetune_bigbird_etc_squad.gin"],
        [*TASK, ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "deberta": ("train", ["models/deberta/base.gin", "runs/deberta.gin"], TASK),
    "deberta_v3": ("train", ["models/deberta_v3/base.gin", "runs/deberta_v3.gin"], TASK),
    "finetune_deberta": (
        "train",
        ["models/deberta_v3/base.gin", "runs/finetune_deberta.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "longformer": ("train", ["models/longformer/base.gin", "runs/longformer.gin"], TASK),
    "finetune_longformer": (
        "train",
        ["models/longformer/base.gin", "runs/finetune_longformer.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "finetune_longformer_squad": (
        "train",
        ["models/longformer/base.gin", "runs/finetune_longformer_squad.gin"],
        [*TASK, ("TRAIN_STEPS", "2000"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "spanbert": ("train", ["models/spanbert/base.gin", "runs/spanbert.gin"], TASK),
    "roberta": ("train", ["models/roberta/base.gin", "runs/roberta.gin"], TASK),
    "mobilebert": ("train", ["models/mobilebert/base.gin", "runs/mobilebert.gin"], TASK),
    "mobilebert_progressive": (
        "train",
        ["models/mobilebert/base.gin", "students/mobilebert_progressive.gin"],
        [*TASK, ("INITIAL_CHECKPOINT_PATH", "runs/ib_bert")],
    ),
    "gpt": ("train", ["models/gpt2/small.gin", "runs/gpt.gin"], TASK),
    "recurrent_lm": ("train", ["models/lstm/base.gin", "runs/recurrent_lm.gin"], TASK),
    "lm_lstm": ("train", ["models/lstm/imdb.gin", "runs/lm_lstm.gin"], []),
    "sequence_autoencoder": ("train", ["models/lstm/base.gin", "runs/sequence_autoencoder.gin"], []),
    "sampled_sequence_autoencoder": (
        "train",
        ["models/lstm/imdb.gin", "runs/sequence_autoencoder.gin", "objectives/sampled_softmax.gin"],
        [],
    ),
    "finetune_lstm": (
        "train",
        ["models/lstm/base.gin", "runs/finetune_lstm.gin", "objectives/label_gain.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "character_lm": ("train", ["models/character_lstm/base.gin", "runs/character_lm.gin"], TASK),
    "elmo": ("train", ["models/elmo/original.gin", "runs/elmo.gin"], []),
    "elmo_tagging": (
        "train",
        ["models/elmo/original.gin", "runs/elmo_tagging.gin"],
        [*TASK, ("LABELS", "('O', 'B-x')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "elmo_span_extraction": (
        "train",
        ["models/elmo/original.gin", "runs/elmo_span_extraction.gin"],
        [*TASK, ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "elmo_classification": (
        "train",
        ["models/elmo/original.gin", "runs/elmo_classification.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "elmo_laptop": ("train", ["models/elmo/tiny.gin", "runs/elmo_laptop.gin"], []),
    "word2vec": ("train", ["models/word_vectors/base.gin", "runs/word2vec.gin"], [("TRAIN_STEPS", "10")]),
    "cbow": (
        "train",
        ["models/word_vectors/base.gin", "runs/word2vec.gin", "objectives/cbow.gin"],
        [("TRAIN_STEPS", "10")],
    ),
    "fasttext": ("train", ["models/word_vectors/fasttext.gin", "runs/fasttext.gin"], [("TRAIN_STEPS", "10")]),
    "finetune_word_vectors": (
        "train",
        ["models/word_vectors/base.gin", "runs/finetune_word_vectors.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("INITIAL_CHECKPOINT_PATH", "runs/1"), ("TRAIN_STEPS", "10")],
    ),
    "tag_word_vectors": (
        "train",
        ["models/word_vectors/base.gin", "runs/tag_word_vectors.gin"],
        [*TASK, ("LABELS", "('O', 'B-a')"), ("INITIAL_CHECKPOINT_PATH", "runs/1"), ("TRAIN_STEPS", "10")],
    ),
    "answer_word_vectors": (
        "train",
        ["models/word_vectors/base.gin", "runs/answer_word_vectors.gin"],
        [*TASK, ("INITIAL_CHECKPOINT_PATH", "runs/1"), ("TRAIN_STEPS", "10")],
    ),
    "subword_cbow": (
        "train",
        ["models/word_vectors/fasttext.gin", "runs/fasttext.gin", "objectives/subword_cbow.gin"],
        [("TRAIN_STEPS", "10")],
    ),
    "fasttext_classification": (
        "train",
        ["models/word_vectors/fasttext.gin", "runs/fasttext_classification.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10")],
    ),
    "glove": ("train", ["models/word_vectors/base.gin", "runs/glove.gin"], [("TRAIN_STEPS", "10")]),
    "analyze": (
        "analyze",
        [SMALL, "commands/analyze.gin"],
        [*CHECKPOINT, ("TREEBANK", "a.conllu"), ("OUTPUT_PATH", "o.html")],
    ),
    "prune": ("prune", [SMALL, "commands/prune.gin"], [*CHECKPOINT, ("HEADS", "0.5"), ("OUTPUT_PATH", "runs/small")]),
    "skip_thoughts": ("train", ["models/skip_thoughts/uni.gin", "runs/skip_thoughts.gin"], [("DATA_FILES", "'a.txt'")]),
    "compare_sentences": (
        "train",
        [
            "models/skip_thoughts/uni.gin",
            "runs/compare_sentences.gin",
            "objectives/score_distribution.gin",
        ],
        [*TASK, ("INITIAL_CHECKPOINT_PATH", "runs/1"), ("TRAIN_STEPS", "10")],
    ),
    "embed": (
        "embed",
        [SMALL, "commands/embed.gin"],
        [*CHECKPOINT, ("INPUT_PATH", "in.txt"), ("OUTPUT_PATH", "o.npz")],
    ),
    "llama": ("train", ["models/llama2/7b.gin", "runs/llama.gin"], TASK),
    "bart": ("train", ["models/bart/base.gin", "runs/bart.gin"], TASK),
    "shakespeare": ("train", ["runs/shakespeare.gin"], [("TEXT", "input.txt")]),
    "convert": ("convert", ["commands/convert.gin"], [("CHECKPOINT_PATH", "runs/1"), ("OUTPUT_PATH", "out")]),
    "ablate": ("ablate", ["commands/ablate.gin"], [("OUTPUT_DIR", "study")]),
    "bert_ablations": ("ablate", ["runs/study/bert_ablations.gin"], [("OUTPUT_DIR", "study")]),
    "distillation_study": ("ablate", ["runs/distillation_study.gin"], [("OUTPUT_DIR", "study")]),
    "distill": (
        "distill",
        ["models/bert/mini.gin", "runs/bert.gin", "distillation/hinton.gin", "runs/distill.gin"],
        [*TASK, ("TEACHER", "runs/1"), ("PREDICTION", "masked_lm")],
    ),
    "calibrate": (
        "train",
        ["models/bert/base.gin", "runs/finetune_classification.gin", "compression/calibrate.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "int8_lora": (
        "train",
        ["models/bert/base.gin", "runs/finetune_classification.gin", "compression/int8_lora.gin"],
        [*TASK, ("LABELS", "('no', 'yes')"), ("TRAIN_STEPS", "10"), ("INITIAL_CHECKPOINT_PATH", "runs/1")],
    ),
    "bench": ("bench", ["commands/bench.gin", SMALL, "runs/pretrain.gin"], []),
    "compare": ("compare", ["commands/compare.gin"], [("MODELS", "('runs/1', 'runs/2')")]),
    "report": ("report", ["commands/report.gin"], [("MODEL_DIRS", "('runs/1', 'runs/2')")]),
    "plan": ("plan", ["commands/plan.gin", SMALL, "runs/pretrain.gin"], [("TOPOLOGY", "v5e:2x4")]),
}


def load(name, *more):
    command, files, bindings = RUNS[name]
    resolved = config.load(
        COMMANDS[command].function,
        files=COMMANDS[command].gin_files(files),
        bindings=[*bindings, *more],
        given=("run_config",),
        accepted=RECIPES if COMMANDS[command].accepts_recipe else (),
        placeholder_macros=COMMANDS[command].placeholder_macros,
    )
    return config.flatten(resolved.text)


@pytest.mark.parametrize("name", RUNS)
def test_resolved_configuration_matches_golden(name):
    text = "".join(f"{name} = {value}\n" for name, value in sorted(load(name).items()))
    golden = GOLDENS / f"{name}.txt"
    if os.environ.get("T5X_LIKE_UPDATE_GOLDENS"):
        GOLDENS.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_every_recipe_and_command_has_a_golden():
    shipped = {
        path.stem
        for directory in ("runs", "commands")
        for path in (Path(config.SHIPPED_ROOT) / directory).glob("*.gin")
    }
    assert shipped - {"train"} <= set(RUNS)  # commands/train.gin is a part of every run


@pytest.mark.parametrize("name", [name for name, (command, _, _) in RUNS.items() if command in ("train", "distill")])
def test_learning_rate_is_the_rate_of_every_recipe(name):
    assert "0.0123" in map(str, load(name, ("LEARNING_RATE", "0.0123")).values())
