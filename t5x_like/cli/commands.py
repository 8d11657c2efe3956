"""The commands: what each is called, does and reads. A new command is one entry here.

Plain data: nothing heavy is imported, so that help is printed at once.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Command:
    """What a command is.

    Attributes:
      function: import path of the plain Python function behind it.
      summary: one line of help.
      run_file: the gin file that is read where none is given.
      positional: the macro that an argument without a flag sets, with how help shows it.
      flags: flags of its own, each with the macro that it sets and a line of help.
      alone: values of those of these flags that can stand without one.
      needs_run: whether it works on a run that exists: its model, task and lengths then come from the configuration
        stored in MODEL_DIR, or beside CHECKPOINT_PATH, unless gin files are given.
      first_file: a gin file of the command's own, read before those of the run that it is about.
      placeholder_macros: values for macros that such a run needs and this command can do without.
      joins: whether several processes run it as one.
      compiles: whether it keeps its compiled programs for the next start; see `compilation_cache`.
      paths: macros with paths that it reads or writes; see `cli.path_checks`.
      dry_runs: whether `--dry_run` describes it.
    """

    function: str
    summary: str
    run_file: str
    positional: tuple[str, str] | None = None
    flags: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    alone: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs_run: bool = False
    first_file: str | None = None
    placeholder_macros: Mapping[str, str] = dataclasses.field(default_factory=dict)
    joins: bool = False
    compiles: bool = False
    paths: tuple[str, ...] = ()
    dry_runs: bool = False


COMMANDS = {
    "train": Command(
        "t5x_like.train.train",
        "pretrain or fine-tune; without arguments, the quickstart",
        "runs/quickstart.gin",
        joins=True,
        compiles=True,
        paths=("MODEL_DIR", "INITIAL_CHECKPOINT_PATH"),
        dry_runs=True,
    ),
    "eval": Command(
        "t5x_like.eval.evaluate",
        "loss and task metrics of a checkpoint",
        "commands/eval.gin",
        needs_run=True,
        joins=True,
        compiles=True,
        paths=("CHECKPOINT_PATH", "OUTPUT_DIR"),
        dry_runs=True,
    ),
    "infer": Command(
        "t5x_like.infer.infer",
        "predict from, or score, the lines of a file",
        "commands/infer.gin",
        flags={
            "input": ("INPUT_PATH", "the .txt or .jsonl file to read"),
            "output": ("OUTPUT_PATH", "the .jsonl file to write"),
            "mode": ("MODE", "predict or score"),
        },
        needs_run=True,
        compiles=True,
        paths=("CHECKPOINT_PATH", "INPUT_PATH", "OUTPUT_PATH"),
        dry_runs=True,
    ),
    "inspect": Command(
        "t5x_like.inspect_task.inspect",
        "show what the model will see of a task",
        "commands/inspect.gin",
        positional=("MIXTURE_OR_TASK_NAME", "TASK"),
        flags={"split": ("SPLIT", "of the data"), "examples": ("NUM_EXAMPLES", "rows to print")},
        needs_run=True,
    ),
    "vocabulary": Command(
        "t5x_like.vocabulary.vocabulary",
        "train a vocabulary on text files",
        "commands/vocabulary.gin",
        flags={
            "pattern": ("PATTERN", "the .txt and .jsonl files to train on, such as 'books/*.txt'"),
            "kind": ("KIND", "sentencepiece (T5; the default), wordpiece (BERT) or byte_bpe (GPT-2)"),
            "size": ("SIZE", "number of pieces, including special ones (default: 32000)"),
            "output": ("OUTPUT_PATH", "the directory to write to (default: vocabulary/KIND)"),
            "lower_case": ("LOWER_CASE", "wordpiece only: lower-case and strip accents (default: True)"),
            "overwrite": ("OVERWRITE", "write to a directory that is not empty"),
        },
        alone={"overwrite": "True"},
    ),
    "convert": Command(
        "t5x_like.convert.convert",
        "weights from and to Hugging Face folders",
        "commands/convert.gin",
        flags={
            "input": ("CHECKPOINT_PATH", "a Hugging Face folder, or a run or one of its checkpoints"),
            "output": ("OUTPUT_PATH", "the folder to write"),
        },
        needs_run=True,
        placeholder_macros={"MODEL": "None"},
        paths=("CHECKPOINT_PATH", "OUTPUT_PATH"),
    ),
    "ablate": Command(
        "t5x_like.ablate.ablate",
        "train a grid of configurations and compare them; without arguments, T5's study in small",
        "commands/ablate.gin",
        flags={"output": ("OUTPUT_DIR", "the folder of the runs, the table and the plot")},
        joins=True,
        compiles=True,
        paths=("OUTPUT_DIR",),
        dry_runs=True,
    ),
    "cache": Command(
        "t5x_like.cache.cache",
        "write a run's data ahead of time, packed, to train from without TensorFlow",
        "runs/pretrain.gin",
        flags={
            "cache_dir": ("CACHE_DIR", "the folder to write to, local or gs://"),
            "passes": ("PASSES", "how often to read the data, each time corrupted differently"),
            "examples": ("EXAMPLES", "of a mixture, which has no end: how many"),
            "processes": ("PROCESSES", "how many work at a time; default: one for each CPU"),
        },
        first_file="commands/cache.gin",
        placeholder_macros={"TRAIN_STEPS": "1000000", "INITIAL_CHECKPOINT_PATH": "any"},
        compiles=True,
        paths=("CACHE_DIR",),
        dry_runs=True,
    ),
    "plan": Command(
        "t5x_like.plan.plan",
        "does a run fit a TPU slice, and how fast can it be; needs no TPU",
        "runs/quickstart.gin",
        flags={
            "topology": ("TOPOLOGY", "the slice, such as v5e:4x8 or v5p:8x8x8"),
            "num_slices": ("NUM_SLICES", "how many of them"),
            "price": ("PRICE", "of a chip for an hour"),
            "json": ("JSON_PATH", "where to write the plan for machines"),
            "search": ("SEARCH", "try out microbatches, remat and mesh, and compile the best 4, or so many"),
        },
        alone={"search": "4"},
        first_file="commands/plan.gin",
        placeholder_macros={"MIXTURE_OR_TASK_NAME": "any", "TRAIN_STEPS": "1000000"},
        compiles=True,
    ),
}
