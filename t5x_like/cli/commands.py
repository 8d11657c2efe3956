"""The commands: name, function, gin files and flags of each. A new command is one entry here or in `…_commands.py`.

This module imports nothing heavy, so that help appears immediately.
"""

from t5x_like.cli import corpus_commands, measuring_commands
from t5x_like.cli.command import (
    BATCH,
    CHECKPOINT,
    DECODING,
    HF_PATH,
    LENGTHS,
    MESH,
    MODULE,
    PLACEHOLDERS,
    TASK,
    Command,
)

# The functions that make recipes.
RECIPES = ("t5x_like.training.recipe.Recipe", "t5x_like.distill.distill")

_RUN = (
    TASK
    | MODULE
    | {
        "MODEL_DIR": "run directory, local or in a bucket (default: runs/<number>)",
        **HF_PATH,
        "INITIAL_CHECKPOINT_PATH": "initial weights: a run, a checkpoint, or one of Hugging Face or T5X",
        "TRAIN_STEPS": "number of steps",
        "TRAIN_EPOCHS": "passes over the training data, instead of TRAIN_STEPS",
    }
    | BATCH
    | LENGTHS
    | {
        "LEARNING_RATE": "learning rate of the optimizer's schedule",
        "MICROBATCHES": "microbatches per step, whose gradients are accumulated",
        "EVAL_PERIOD": "steps between evaluations",
        "SAVE_PERIOD": "steps between checkpoints",
    }
    | MESH
)

COMMANDS = {
    "train": Command(
        "t5x_like.train.train",
        "pretrain or fine-tune; without arguments, the quickstart",
        "runs/quickstart.gin",
        settings=_RUN,
        base_gin_file="commands/train.gin",
        trains=True,
        multi_process=True,
        compiles=True,
        paths=("MODEL_DIR", "INITIAL_CHECKPOINT_PATH"),
        dry_run="check_training",
        all_phases=True,
        derives=("model", "decoding", "steps"),
    ),
    "distill": Command(
        "t5x_like.train.train",
        "train a student on the outputs of a teacher",
        "runs/distill.gin",
        settings={
            "TEACHER": "run directory or Hugging Face directory of the teacher, or outputs of a served one",
            "TEACHER_CHECKPOINT": "which checkpoint of a run: latest (default), best or a step",
        }
        | _RUN,
        base_gin_file="commands/distill.gin",
        trains=True,
        multi_process=True,
        compiles=True,
        paths=("MODEL_DIR", "INITIAL_CHECKPOINT_PATH", "TEACHER"),
        dry_run="check_training",
        all_phases=True,
        derives=("model", "decoding", "steps"),
    ),
    "eval": Command(
        "t5x_like.eval.evaluate",
        "compute the loss and the task metrics of a checkpoint",
        "commands/eval.gin",
        settings=CHECKPOINT
        | TASK
        | MODULE
        | {
            "SPLIT": "split, or several, to evaluate on (default: the splits of the run, or validation)",
            "EVAL_STEPS": "batches of the loss (default: all)",
            "TASK_METRICS": "whether to compute the task's metrics from predictions (default: if it has any)",
            "NUM_EXAMPLES": "examples to predict (default: all)",
            "OUTPUT_DIR": "directory for metrics and predictions (default: none are written)",
        }
        | DECODING
        | {"BATCH_SIZE": "sequences per batch; the run's value precedes"}
        | MESH,
        needs_run=True,
        run_macros=("BATCH_SIZE",),
        multi_process=True,
        compiles=True,
        paths=("CHECKPOINT_PATH", "OUTPUT_DIR"),
        dry_run="check_eval",
        derives=("model", "decoding"),
    ),
    "infer": Command(
        "t5x_like.infer.infer",
        "predict from, or score, the records of a file, or answer prompts",
        "commands/infer.gin",
        flags={
            "input": ("INPUT_PATH", "the .jsonl, .csv, .tsv or .txt file to read; - is standard input"),
            "output": ("OUTPUT_PATH", "the .jsonl file to write; - is standard output"),
            "mode": ("MODE", "predict or score"),
            "interactive": ("INTERACTIVE", "answer prompts in a terminal"),
            "overwrite": ("OVERWRITE", "replace an existing output file"),
        },
        flag_defaults={"interactive": "True", "overwrite": "True"},
        settings=CHECKPOINT
        | {
            "MIXTURE_OR_TASK_NAME": "SeqIO task whose preprocessors and vocabularies encode the records",
            "VOCABULARY_PATH": "Hugging Face directory or SentencePiece model that encodes text without a task",
        }
        | MODULE
        | LENGTHS
        | {"EOS_ID": "token that ends a prediction (default: of the vocabulary)"}
        | DECODING
        | BATCH
        | MESH,
        needs_run=True,
        multi_process=True,
        compiles=True,
        paths=("CHECKPOINT_PATH", "INPUT_PATH", "OUTPUT_PATH"),
        files=("OUTPUT_PATH",),
        dry_run="check_infer",
        derives=("model", "decoding"),
    ),
    "augment": Command(
        "t5x_like.augment.augment",
        "add copies of the rows of a table, in which a masked language model replaces words",
        "commands/augment.gin",
        flags={
            "input": ("INPUT_PATH", "the .tsv, .csv or .jsonl file to read"),
            "output": ("OUTPUT_PATH", "the file to write, in the same format"),
            "columns": ("COLUMNS", "the columns of the texts, separated by commas"),
            "overwrite": ("OVERWRITE", "replace an existing output file"),
        },
        flag_defaults={"overwrite": "True"},
        text_flags=("columns",),
        settings=CHECKPOINT
        | {
            "COPIES": "copies per text",
            "CANDIDATES": "most probable words among which a replacement is drawn",
            "PROBABILITY": "probability that a word of a copy is replaced",
            "GLOVE_PATH": "word vectors, whose nearest neighbors replace words of several pieces",
            "SEED": "seed of the copies",
            "BATCH_SIZE": "masked words per batch",
        }
        | MESH,
        needs_run=True,
        multi_process=True,
        compiles=True,
        paths=("CHECKPOINT_PATH", "INPUT_PATH", "OUTPUT_PATH"),
        files=("OUTPUT_PATH",),
        dry_run="check_loaded",
        derives=("model",),
    ),
    "embed": Command(
        "t5x_like.embed.embed",
        "write vectors of texts or tokens, or print the nearest neighbors of a word",
        "commands/embed.gin",
        flags={
            "input": ("INPUT_PATH", "the .txt, .jsonl, .csv or .tsv file to read"),
            "output": ("OUTPUT_PATH", "the .npz, .hdf5, .jsonl or .txt file to write"),
            "neighbours": ("NEIGHBOURS", "a word: print its nearest neighbors, in the sentences of --input if given"),
            "overwrite": ("OVERWRITE", "replace an existing output file"),
        },
        flag_defaults={"overwrite": "True"},
        text_flags=("neighbours",),
        settings=CHECKPOINT
        | {
            "LEVEL": "sentence (default) or token",
            "POOLING": "vector of a sentence: mean (default), cls or last",
            "LAYERS": "hidden states: output (default), a number, several for their mean, or {layer: weight}",
            "NORMALIZE": "whether vectors have length 1",
            "COUNT": "number of neighbors (default: 10)",
            "VOCABULARY_PATH": "Hugging Face directory or SentencePiece model, if the model is stored without",
            "BATCH_SIZE": "texts per batch",
        }
        | MESH,
        needs_run=True,
        run_macros=("MAX_LENGTH",),
        compiles=True,
        paths=("CHECKPOINT_PATH", "INPUT_PATH", "OUTPUT_PATH"),
        files=("OUTPUT_PATH",),
        dry_run="check_loaded",
        derives=("model",),
    ),
    "analyze": Command(
        "t5x_like.analyze.analyze",
        "show what a model knows: attention heads, probes, cloze sentences, minimal pairs",
        "commands/analyze.gin",
        positional=("CHECKPOINT_PATH", "MODEL"),
        flags={
            "output": ("OUTPUT_PATH", "the .html page to write, and a .json file of the same name"),
            "analyses": ("ANALYSES", "names, separated by commas (default: all whose data is given)"),
            "treebank": ("TREEBANK", "a CoNLL-U file or a directory: attention heads and probes"),
            "sentences": ("SENTENCES", "a .txt file, or a sentence: pictures of attention"),
            "pairs": ("PAIRS", "a .jsonl file or a directory in the format of BLiMP: minimal pairs"),
            "every": ("EVERY", "analyze the checkpoints at multiples of this number of steps"),
            "overwrite": ("OVERWRITE", "replace existing output files"),
        },
        flag_defaults={"overwrite": "True"},
        text_flags=("analyses", "sentences"),
        settings=CHECKPOINT
        | {
            "COREFERENCE": "a .jsonl file with clusters of mentions: antecedents",
            "CLOZE": "a .jsonl file of sentences with a blank (default: those that are shipped)",
            "MAX_SENTENCES": "sentences of the treebank (default: 1000)",
            "VOCABULARY_PATH": "Hugging Face directory or SentencePiece model, if the model is stored without",
            "BATCH_SIZE": "texts per batch",
        }
        | MESH,
        needs_run=True,
        base_gin_file="commands/analyze.gin",
        compiles=True,
        paths=("CHECKPOINT_PATH", "OUTPUT_PATH"),
        files=("OUTPUT_PATH",),
        dry_run="check_loaded",
        derives=("model",),
    ),
    **corpus_commands.COMMANDS,
    "convert": Command(
        "t5x_like.convert.convert",
        "convert weights from and to Hugging Face directories, and from T5X checkpoints",
        "commands/convert.gin",
        flags={
            "input": ("CHECKPOINT_PATH", "a Hugging Face directory, a T5X checkpoint, a run or its checkpoint"),
            "output": ("OUTPUT_PATH", "the directory to write"),
            "heads": (
                "HEADS",
                "all (the default), supported: those that transformers computes, or none for the bare model",
            ),
            "merge": ("MERGE", "False: write the adapters of a run alone, in the files of peft (default: True)"),
            "quantization": ("QUANTIZATION", "write a run with weights in int8, int4, bfloat16 or float16"),
            "quantized_inputs": ("QUANTIZED_INPUTS", "dynamic: the inputs of projections are int8 as well"),
            "integers": ("INTEGERS", "export the integers of a quantized run, as compressed-tensors stores them"),
            "allow_nonfinite": ("ALLOW_NONFINITE", "convert weights with infinite values or NaN"),
        },
        flag_defaults={"integers": "True", "allow_nonfinite": "True"},
        text_flags=("heads", "quantization", "quantized_inputs"),
        needs_run=True,
        base_gin_file="commands/convert.gin",
        placeholder_macros={"MODEL": "None"},
        paths=("CHECKPOINT_PATH", "OUTPUT_PATH"),
    ),
    "prune": Command(
        "t5x_like.prune.prune",
        "write a smaller model, without the least important heads, feed-forward units or layers",
        "commands/prune.gin",
        flags={"output": ("OUTPUT_PATH", "the run directory to write")},
        settings=CHECKPOINT
        | {
            "HEADS": "share of the attention heads that are kept",
            "UNITS": "share of the hidden units of feed-forward blocks that are kept",
            "LAYERS": "layers that are kept, such as \"{'encoder': (0, 2, 4)}\"; 2: every other layer",
            "PER_LAYER": "False: the least important of all layers become zeros (default: True)",
            "BATCHES": "batches from which importances are computed (default: 32)",
        }
        | TASK
        | MODULE
        | BATCH
        | MESH,
        needs_run=True,
        run_macros=("BATCH_SIZE",),
        compiles=True,
        paths=("CHECKPOINT_PATH", "OUTPUT_PATH"),
        dry_run="check_loaded",
        derives=("model",),
    ),
    "ablate": Command(
        "t5x_like.ablate.ablate",
        "train a grid of configurations and compare them; without gin files, a small version of T5's study",
        "commands/ablate.gin",
        flags={"output": ("OUTPUT_DIR", "the directory for the runs, the table and the plot")},
        settings={
            "GRID": "row -> column -> gin files of a training run",
            "GIN_FILES": "gin files to read after the files of each cell",
            "SETTINGS": "macros for all cells, such as \"{'TRAIN_STEPS': 20000}\"",
            "METRIC": "the metric to compare (default: loss)",
        },
        multi_process=True,
        compiles=True,
        paths=("OUTPUT_DIR",),
        dry_run="check_ablation",
    ),
    "cache": Command(
        "t5x_like.cache.cache",
        "write the data of a run ahead of time, packed, to train without TensorFlow",
        "runs/pretrain.gin",
        flags={
            "cache_dir": ("CACHE_DIR", "the directory to write to, local or in a bucket"),
            "passes": ("PASSES", "number of passes over the data, each with different corruption (default: 1)"),
            "examples": ("EXAMPLES", "number of examples of a mixture, which repeats without end"),
            "processes": ("PROCESSES", "number of worker processes (default: one per CPU, none for small data)"),
        },
        settings=TASK | MODULE | LENGTHS | {"NUM_SHARDS": "number of files per pass (default: 8)"},
        base_gin_file="commands/cache.gin",
        accepts_recipe=True,
        compiles=True,
        paths=("CACHE_DIR",),
        dry_run="check_cache",
        derives=("model", "steps"),
    ),
    "cache_logits": Command(
        "t5x_like.cache_logits.cache_logits",
        "store the logits of a teacher beside a cache, to distill without the teacher",
        "commands/cache_logits.gin",
        flags={
            "cache_dir": ("CACHE_DIR", "the cache, local or in a bucket"),
            "teacher": ("TEACHER", "run directory or Hugging Face directory of the teacher"),
            "output": ("TEACHER_LOGITS", "the directory to write to (default: CACHE_DIR/teacher_logits)"),
        },
        settings={
            "K": "number of the largest logits to store; None for all (default: 64)",
            "LOGITS_DTYPE": "float16 (default) or float32",
            "SOFTMAX_TEMPERATURE": "temperature of the losses (default: 1.0)",
            "SPLITS": "splits whose rows are read (default: ('train',))",
            "TEACHER_CHECKPOINT": "which checkpoint of the teacher: latest (default), best or a step",
        }
        | BATCH
        | MESH,
        base_gin_file="commands/cache_logits.gin",
        placeholder_macros={"LABELS": PLACEHOLDERS["LABELS"]},
        accepts_recipe=True,
        multi_process=True,
        compiles=True,
        paths=("TEACHER_LOGITS",),
        dry_run="check_cache_logits",
        derives=("model", "steps"),
    ),
    "import_logits": Command(
        "t5x_like.import_logits.import_logits",
        "store the log-probabilities of a served teacher, to distill without its model",
        "commands/import_logits.gin",
        flags={
            "pattern": ("PATTERN", "files of served texts and their top log-probabilities: .jsonl or .parquet"),
            "cache_dir": ("CACHE_DIR", "the directory to write to"),
        },
        settings={
            "VOCABULARY_PATH": "tokenizer of the teacher: Hugging Face directory or SentencePiece model",
            "PROMPT_FIELD": "field of a record with the prompt, for an objective that reads inputs",
            "STUDENT_VOCABULARY_PATH": "tokenizer of a student that has another one, for losses across tokenizers",
            "K": "number of log-probabilities per token (default: as many as every token has)",
            "REST": "the other tokens: bucket (default), or renormalised for none",
            "LOGITS_DTYPE": "float16 (default) or float32",
        }
        | LENGTHS,
        base_gin_file="commands/import_logits.gin",
        accepts_recipe=True,
        paths=("CACHE_DIR",),
    ),
    **measuring_commands.COMMANDS,
}
