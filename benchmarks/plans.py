"""Plans every size of T5 1.1 on slices of four generations of TPU and writes docs/plans.md's table; hours on two cores.

python benchmarks/plans.py FOLDER            # one JSON file a plan; what is there already is not planned again
python benchmarks/plans.py FOLDER --table    # only the table of what is there
"""

import argparse
import json
import pathlib
import subprocess
import sys

# Model, rows of a batch, slices and how many microbatches each takes. The largest batch is 1.3 million tokens.
PLANS = [
    *(("base", 128, slice_) for slice_ in (("v4:2x2x2", 1), ("v5e:2x4", 1), ("v5p:2x2x2", 1), ("v6e:2x4", 1))),
    *(("large", 256, slice_) for slice_ in (("v4:2x2x4", 1), ("v5e:4x4", 2), ("v5p:2x2x4", 1), ("v6e:4x4", 1))),
    *(("xl", 1024, slice_) for slice_ in (("v4:4x4x4", 1), ("v5e:8x8", 1), ("v5p:2x4x4", 1), ("v6e:4x8", 2))),
    *(("xxl", 2048, slice_) for slice_ in (("v4:4x4x8", 1), ("v5e:16x16", 1), ("v5p:8x8x8", 1), ("v6e:8x8", 4))),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    found = []
    for size, rows, (topology, microbatches) in PLANS:
        file = arguments.folder / f"{size}_{topology.replace(':', '_')}.json"
        if not file.exists() and not arguments.table:
            subprocess.run(command(size, rows, topology, microbatches, file), check=False)
        if file.exists():
            found.append((size, rows, json.loads(file.read_text())))
    print(table(found))


def command(size, rows, topology, microbatches, file):
    chip = topology.partition(":")[0]
    files = (f"models/t5_1_1/{size}.gin", "runs/pretrain.gin", f"hardware/{chip}.gin")
    return [
        *(sys.executable, "-m", "t5x_like", "plan"),
        *(f"--gin_file={name}" for name in files),
        *(f"--gin.BATCH_SIZE={rows}", f"--gin.MICROBATCHES={microbatches}"),
        *(f"--topology={topology}", f"--json={file}"),
    ]


HEADER = (
    *("model", "rows", "slice", "parts", "peak / HBM, GiB", "executed / model"),
    *("sent a step", "bound, ms", "by", "tokens/s", "MFU"),
)


def table(plans):
    return "\n".join([_row(HEADER), _row(["---"] * len(HEADER)), *(_row(_cells(*plan)) for plan in plans)])


def _cells(size, rows, plan):
    memory = f"{plan['hbm_bytes_per_chip'] / 2**30:.1f} / {plan['hbm_capacity_bytes'] / 2**30:.1f}"
    known = (size, f"{rows:,}", plan["topology"], plan["microbatches"])
    if not plan["fits"]:
        return (*known, f"{memory}: does not fit", *[""] * (len(HEADER) - len(known) - 1))
    sent = sum(count for axes in plan["collective_bytes"].values() for count in axes.values())
    return (
        *(*known, memory, f"{plan['executed_flops'] / plan['model_flops']:.3f}", f"{sent / 1e9:.2f} GB"),
        *(f"{1e3 * plan['step_seconds_bound']:,.1f}", plan["bound_by"]),
        *(f"{plan['tokens_per_second']:,.0f}", f"{100 * plan['mfu_at_bound']:.1f} %"),
    )


def _row(cells):
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
