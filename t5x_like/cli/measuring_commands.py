"""The commands that measure, plan and report runs."""

from t5x_like.cli.command import BATCH, LENGTHS, MESH, PLACEHOLDERS, Command

COMMANDS = {
    "bench": Command(
        "t5x_like.bench.bench",
        "measure the speed and the memory of a run's training step on this machine; reads no task",
        "runs/quickstart.gin",
        flags={
            "steps": ("BENCH_STEPS", "number of measured steps (default: 10)"),
            "warmup_steps": ("BENCH_WARMUP_STEPS", "number of steps before them (default: 2)"),
            "max_seconds": ("BENCH_SECONDS", "seconds after which no further step is measured (default: 600)"),
            "parts": ("BENCH_PARTS", "False: measure the whole step alone (default: True)"),
            "json": ("JSON_PATH", "a file to write the result to, as JSON"),
        },
        settings=BATCH | LENGTHS | {"MICROBATCHES": "microbatches per step"} | MESH,
        base_gin_file="commands/bench.gin",
        placeholder_macros=PLACEHOLDERS,
        multi_process=True,
        paths=("JSON_PATH",),
        files=("JSON_PATH",),
        dry_run="check_program",
        derives=("model", "steps"),
    ),
    "compare": Command(
        "t5x_like.compare.compare",
        "compare stored models by size, memory, latency and score",
        "commands/compare.gin",
        positional=("MODELS", "MODEL"),
        positional_repeats=True,
        flags={
            "rows": ("ROWS", "rows of the timed batches (default: 1,32)"),
            "metric": ("METRIC", "metric of the scores (default: the first one of the task)"),
            "rounds": ("COMPARE_ROUNDS", "how often each prediction is timed (default: 20)"),
            "warmup_rounds": ("COMPARE_WARMUP_ROUNDS", "calls before the rounds, not timed (default: 2)"),
            "max_seconds": ("COMPARE_SECONDS", "seconds after which no further round starts (default: 600)"),
            "json": ("JSON_PATH", "a file to write the result to, as JSON"),
            "plot": ("PLOT_PATH", "a .png file to draw the scores over the sizes to"),
        },
        text_flags=("rows", "metric"),
        settings=LENGTHS,
        paths=("JSON_PATH", "PLOT_PATH"),
        files=("JSON_PATH", "PLOT_PATH"),
    ),
    "plan": Command(
        "t5x_like.plan.plan",
        "estimate memory and speed of a run on TPUs or NVIDIA GPUs; needs neither",
        "runs/quickstart.gin",
        flags={
            "topology": ("TOPOLOGY", "the slice, such as v5e:4x8, or GPUs, such as h100:8 or h100:2x8"),
            "num_slices": ("NUM_SLICES", "number of TPU slices (default: 1)"),
            "price": ("PRICE", "price of a chip per hour"),
            "json": ("JSON_PATH", "a file to write the plan to, as JSON"),
            "search": ("SEARCH", "search microbatches, remat, mesh and rules, and compile the best 4, or this many"),
        },
        flag_defaults={"search": "4"},
        settings=BATCH
        | LENGTHS
        | {"MICROBATCHES": "microbatches per step"}
        | MESH
        | {"DCN": "mesh across slices, such as \"{'data': 2}\""},
        base_gin_file="commands/plan.gin",
        placeholder_macros=PLACEHOLDERS,
        compiles=True,
        paths=("JSON_PATH",),
        files=("JSON_PATH",),
        all_phases=True,
        derives=("model", "steps"),
    ),
    "report": Command(
        "t5x_like.report.report",
        "write an HTML page about one or several runs",
        "commands/report.gin",
        positional=("MODEL_DIRS", "MODEL_DIR"),
        positional_repeats=True,
        flags={"output": ("OUTPUT_PATH", "the .html file to write (default: report.html)")},
        paths=("OUTPUT_PATH",),
        files=("OUTPUT_PATH",),
    ),
}
