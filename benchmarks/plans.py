"""Plans training runs and distillations on slices of five TPU generations and on GPUs, and prints their tables.

python benchmarks/plans.py DIRECTORY            # writes one JSON file per plan; existing files are kept
python benchmarks/plans.py DIRECTORY --only='BERT large.*v5p'
python benchmarks/plans.py DIRECTORY --table    # prints the tables of existing files only
"""

import argparse
import dataclasses
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Model:
    """A model to plan on several slices.

    Attributes:
      name: Name in the table.
      files: Gin files of the run.
      rows: Batch size.
      slices: Topologies, each with the number of microbatches that fits.
      flags: Flags that override the gin files.
      measured: Slice -> tokens per second and chip that another project has published for the same shape.
    """

    name: str
    files: tuple[str, ...]
    rows: int
    slices: tuple[tuple[str, int], ...]
    flags: tuple[str, ...] = ()
    measured: Mapping[str, float] = dataclasses.field(default_factory=dict)


def _t5(size, rows, *slices):
    return Model(f"T5 1.1 {size}", (f"models/t5_1_1/{size}.gin", "runs/pretrain.gin"), rows, slices)


def _distillation(name, *, student, losses, teacher, rows, slices, flags=()):
    files = (*student, f"distillation/{losses}.gin", "runs/distill.gin")
    return Model(name, files, rows, slices, (f"--gin.TEACHER=models/{teacher}.gin", *flags))


def _llama(name, file, length, rows, topology, measured=None):
    files = (f"models/{file}.gin", "runs/llama.gin")
    flags = (f"--gin.TASK_FEATURE_LENGTHS={{'targets': {length}}}", "--gin.llama.LlamaConfig.remat='attention'")
    known = {topology: measured} if measured else {}
    return Model(f"{name}, {length:,}", files, rows, ((topology, 1),), flags, known)


def _decoder(name, file, config, length, rows, *slices):
    flags = (f"--gin.TASK_FEATURE_LENGTHS={{'targets': {length}}}", f"--gin.{config}.remat='attention'")
    files = (f"models/{file}.gin", "runs/llama.gin")
    return Model(f"{name}, {length:,}", files, rows, tuple((slice_, 1) for slice_ in slices), flags)


def _full_remat(name, files=(), flags=()):
    lengths = "--gin.TASK_FEATURE_LENGTHS={'targets': 4096}"
    files = ("models/llama3_1/8b.gin", "runs/llama.gin", *files)
    return Model(name, files, 8, (("v5e:2x4", 1),), (lengths, "--gin.llama.LlamaConfig.remat='full'", *flags))


def _encoder(name, model, recipe, targets):
    files = (f"models/{model}.gin", f"runs/{recipe}.gin")
    lengths = f"--gin.TASK_FEATURE_LENGTHS={{'inputs': 512, 'targets': {targets}}}"
    return Model(name, files, 256, (("v5e:4x4", 1), ("v5p:2x2x4", 1)), (lengths,))


_TOKENS_PER_CHIP = 2**16


def _of_length(name, model, length, targets, *flags):
    """Returns an encoder on one chip, with the same number of tokens and targets per step at any row length."""
    lengths = f"--gin.TASK_FEATURE_LENGTHS={{'inputs': {length}, 'targets': {targets}}}"
    files = (f"models/{model}/base.gin", f"runs/{model}.gin")
    return Model(f"{name}, {length:,}", files, _TOKENS_PER_CHIP // length, (("v5p:1x1x1", 1),), (lengths, *flags))


def _longformer(length, suffix="", *flags):
    targets = -(-length * 15 // 100)
    return _of_length(f"Longformer base{suffix}", "longformer", length, targets, f"--gin.MAX_LENGTH={length}", *flags)


def _bigbird(length):
    targets = -(-length * 75 // 4096)
    return _of_length("BigBird base", "bigbird", length, targets, f"--gin.BigBirdConfig.max_length={length}")


def _etc(name, *flags):
    files = ("models/bigbird_etc/base.gin", "runs/bigbird_etc.gin")
    return Model(f"BigBird ETC base, {name}", files, _TOKENS_PER_CHIP // 4096, (("v5p:1x1x1", 1),), flags)


_GPUS = ("h100",)  # they have one file of options
_SIXTEEN_CHIPS = (("v5e:4x4", 2), ("v5p:2x2x4", 1))
_SIXTEEN_CHIPS_LONG = (("v5e:4x4", 8), ("v5p:2x2x4", 1))

# Title of a table -> its models.
TABLES = {
    "BERT large, GPT-2 XL, T5 1.1 and Llama 3.1 8B": (
        Model(
            "BERT large",
            ("models/bert/large.gin", "runs/bert.gin"),
            256,
            (("v4:2x2x4", 1), ("v5e:4x4", 1), ("v5p:2x2x4", 1), ("v6e:4x4", 1), ("tpu7x:2x2x2", 1)),
            ("--gin.TASK_FEATURE_LENGTHS={'inputs': 512, 'targets': 77}",),
        ),
        Model(
            "GPT-2 XL",
            ("models/gpt2/xl.gin", "runs/gpt.gin"),
            512,
            (("v4:4x4x4", 1), ("v5e:8x8", 2), ("v5p:4x4x4", 1), ("v6e:8x8", 1)),
        ),
        _t5("base", 128, ("v4:2x2x2", 1), ("v5e:2x4", 1), ("v5p:2x2x2", 1), ("v6e:2x4", 1), ("tpu7x:2x2x1", 1)),
        _t5("large", 256, ("v4:2x2x4", 1), ("v5e:4x4", 1), ("v5p:2x2x4", 1), ("v6e:4x4", 1)),
        _t5("xl", 1024, ("v4:4x4x4", 1), ("v5e:8x8", 1), ("v5p:2x4x4", 1), ("v6e:4x8", 1)),
        _t5("xxl", 2048, ("v4:4x4x8", 1), ("v5e:16x16", 1), ("v5p:8x8x8", 1), ("v6e:8x8", 2)),
        _llama("Llama 3.1 8B", "llama3_1/8b", 4096, 128, "v5p:4x4x4"),
        _llama("Llama 3.1 8B", "llama3_1/8b", 8192, 256, "v5e:16x16"),
    ),
    # ModernBERT predicts at 30 % of the tokens.
    "ModernBERT, Qwen 3 and Gemma 3": (
        Model(
            "ModernBERT large, 8,192",
            ("models/modernbert/large.gin", "runs/roberta.gin"),
            64,
            (("v5p:2x2x4", 1), ("v5e:4x8", 1)),
            ("--gin.TASK_FEATURE_LENGTHS={'inputs': 8192, 'targets': 2458}",),
        ),
        _decoder("Qwen 3 8B", "qwen3/8b", "qwen.Qwen3Config", 4096, 128, "v5p:4x4x4"),
        _decoder("Qwen 3 8B", "qwen3/8b", "qwen.Qwen3Config", 4096, 256, "v5e:16x16"),
        _decoder("Qwen 3 0.6B", "qwen3/0_6b", "qwen.Qwen3Config", 4096, 64, "v5e:4x4"),
        _decoder("Gemma 3 4B", "gemma3/4b", "gemma.Gemma3Config", 4096, 128, "v5p:2x4x4", "v5e:8x8"),
        Model(
            "T5Gemma 2B-2B, 4,096",
            ("models/t5gemma/2b_2b.gin", "runs/pretrain.gin"),
            64,
            (("v5p:2x4x4", 1), ("v5e:8x8", 1)),
            (
                "--gin.TASK_FEATURE_LENGTHS={'inputs': 4096, 'targets': 4096}",
                "--gin.gemma.Gemma2Config.remat='attention'",
            ),
        ),
    ),
    # The microbatches of their recipes, per chip of 128 rows.
    "Small budgets": (
        Model("Cramming base", ("models/cramming/base.gin", "runs/cramming.gin"), 8192, (("v5e:1x1", 64),)),
        Model("LTG-BERT base", ("models/ltgbert/base.gin", "runs/ltgbert.gin"), 32768, (("v5e:4x4", 16),)),
    ),
    "Llama 3.1 8B with LoRA beside full training": (
        _full_remat("Llama 3.1 8B"),
        _full_remat("Llama 3.1 8B, LoRA", ("adapters/lora.gin",), ("--gin.FROZEN_DTYPE=bfloat16",)),
    ),
    "Encoders": (
        _encoder("ELECTRA large", "electra/large", "electra", 130),
        _encoder("ALBERT xxlarge", "albert/xxlarge", "albert", 20),
        _encoder("SpanBERT large", "spanbert/large", "spanbert", 77),
    ),
    "Long rows and relative scores": (
        Model("BigBird large, 4,096", ("models/bigbird/large.gin", "runs/bigbird.gin"), 256, _SIXTEEN_CHIPS_LONG),
        Model("Longformer large, 4,096", ("models/longformer/large.gin", "runs/longformer.gin"), 64, _SIXTEEN_CHIPS),
        Model("XLNet large, 512", ("models/xlnet/large.gin", "runs/xlnet.gin"), 256, _SIXTEEN_CHIPS),
        Model("DeBERTa v3 large, 512", ("models/deberta_v3/large.gin", "runs/deberta_v3.gin"), 256, _SIXTEEN_CHIPS),
    ),
    "Rows of different lengths": (
        *(_longformer(length) for length in (1024, 4096, 16384)),
        _longformer(16384, " with remat", "--gin.LongformerConfig.remat='full'"),
        *(_bigbird(length) for length in (1024, 4096, 16384)),
    ),
    "BigBird ETC": (_etc("gathered blocks", "--gin.Partitioner.attention=xla"), _etc("kernels")),
    "Distillation and MobileBERT": (
        Model(
            "MobileBERT",
            ("models/mobilebert/base.gin", "runs/mobilebert.gin"),
            256,
            (("v5e:1x1", 8), ("v5p:1x1x1", 2)),
        ),
        _distillation(
            "BERT large to TinyBERT",
            student=("models/bert/tinybert_4.gin", "students/tinybert.gin"),
            losses="tinybert_general",
            teacher="bert/large",
            rows=256,
            slices=(("v5e:2x2", 1), ("v5p:2x2x1", 1)),
            # TinyBERT has 12 heads. Losses of attention need the teacher's heads.
            flags=("--gin.bert.BertConfig.num_heads=16",),
        ),
        _distillation(
            "T5 1.1 xl to base",
            student=("models/t5_1_1/base.gin", "runs/pretrain.gin"),
            losses="hinton",
            teacher="t5_1_1/xl",
            rows=128,
            slices=(("v5e:2x4", 1), ("v5p:2x2x1", 1)),
        ),
        _distillation(
            "Llama 3.1 8B to 3.2 1B",
            student=("students/llama_1b.gin",),
            losses="hinton",
            teacher="llama3_1/8b",
            rows=256,
            slices=(("v5e:8x8", 1), ("v5p:2x4x4", 1)),
            flags=("--gin.llama.LlamaConfig.remat='full'",),
        ),
        _distillation(
            "Llama 3.1 8B to 3.2 1B",
            student=("students/llama_1b.gin",),
            losses="hinton",
            teacher="llama3_1/8b",
            rows=64,
            slices=(("v5p:2x2x2", 1), ("h100:8", 1)),
            flags=("--gin.llama.LlamaConfig.remat='full'",),
        ),
    ),
    # Measured by MaxText: docs/reference/models/tiering.md of AI-Hypercomputer/maxtext. Rows per chip are those of the
    # configurations that it links, and of the recipe of Llama 3.1 8B (per_device_batch_size).
    "Llama beside MaxText's measurements": (
        _llama("Llama 3.1 8B", "llama3_1/8b", 8192, 4 * 256, "v6e:16x16", 7207),
        _llama("Llama 3.1 70B", "llama3_1/70b", 8192, 5 * 256, "v6e:16x16", 960),
        _llama("Llama 2 70B", "llama2/70b", 4096, 4 * 256, "v6e:16x16", 900),
        _llama("Llama 2 70B", "llama2/70b", 4096, 4 * 512, "v5p:8x8x8", 692),
    ),
}


def main() -> None:
    """Plans all models and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path, help="directory of the plans")
    parser.add_argument("--only", metavar="REGEX", default="", help="plan the rows whose 'MODEL SLICE' matches")
    parser.add_argument("--table", action="store_true", help="print the tables of existing plans only")
    arguments = parser.parse_args()
    rows = [f"{model.name} {slice_}" for models in TABLES.values() for model in models for slice_, _ in model.slices]
    try:
        matching = {row for row in rows if re.search(arguments.only, row)}
    except re.error as error:
        parser.error(f"--only={arguments.only}: not a regular expression: {error}")
    if not matching:
        parser.error(f"--only={arguments.only}: matches none of {', '.join(rows)}")
    arguments.directory.mkdir(exist_ok=True)
    for title, models in TABLES.items():
        plans = []
        for model in models:
            for topology, microbatches in model.slices:
                file = arguments.directory / f"{model.name}_{topology}.json".replace(" ", "_").replace(":", "_")
                if f"{model.name} {topology}" in matching and not arguments.table and not file.exists():
                    subprocess.run(command(model, topology, microbatches, file), check=False)
                if file.exists():
                    plans.append((model, json.loads(file.read_text())))
        print(f"\n## {title}\n\n{table(plans)}")


def command(model: Model, topology: str, microbatches: int, file: pathlib.Path) -> list[str]:
    """Returns the command that plans a model on a slice and writes a JSON file."""
    chip = topology.partition(":")[0]
    chip = "gpu" if chip in _GPUS else chip
    return [
        *(sys.executable, "-m", "t5x_like", "plan"),
        *(f"--gin_file={name}" for name in (*model.files, f"hardware/{chip}.gin")),
        *(f"--gin.BATCH_SIZE={model.rows}", f"--gin.MICROBATCHES={microbatches}", *model.flags),
        *(f"--topology={topology}", f"--json={file}"),
    ]


HEADER = (
    *("model", "rows", "slice", "microbatches", "peak / HBM, GiB", "executed / model"),
    *("sent per step", "bound, ms", "by", "expected, ms", "tokens/s expected", "MFU", "MFU expected"),
)
MEASURED = ("expected tokens/s per chip", "measured by MaxText", "ratio")


def table(plans: list[tuple[Model, dict]]) -> str:
    """Returns the plans as a Markdown table."""
    header = HEADER + MEASURED * any(model.measured for model, _ in plans)
    rows = [(*cells, *[""] * (len(header) - len(cells))) for cells in (_cells(*plan) for plan in plans)]
    return "\n".join(map(_row, [header, ["---"] * len(header), *rows]))


def _cells(model, plan):
    memory = f"{plan['hbm_bytes_per_device'] / 2**30:.1f} / {plan['hbm_capacity_bytes'] / 2**30:.1f}"
    known = (model.name, f"{model.rows:,}", plan["topology"], plan["microbatches"])
    if not plan["fits"]:
        return (*known, f"{memory}: does not fit")
    sent = sum(count for axes in plan["collective_bytes"].values() for count in axes.values())
    return (
        *(*known, memory, f"{plan['executed_flops'] / plan['model_flops']:.3f}", f"{sent / 1e9:.2f} GB"),
        *(f"{1e3 * plan['step_seconds_bound']:,.1f}", plan["bound_by"], f"{1e3 * plan['expected_step_seconds']:,.1f}"),
        *(f"{plan['tokens_per_second_expected']:,.0f}", f"{100 * plan['mfu_at_bound']:.1f} %"),
        f"{100 * plan['mfu_expected']:.1f} %",
        *_compared(model, plan),
    )


def _compared(model, plan):
    if (measured := model.measured.get(plan["topology"])) is None:
        return ()
    expected = plan["tokens_per_second_expected"] / plan["chips"]
    return f"{expected:,.0f}", f"{measured:,.0f}", f"{expected / measured:.2f}"


def _row(cells):
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
