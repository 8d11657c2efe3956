"""Compares the training steps of models on CPU with transformers, and of an LSTM with torch, eager and compiled.

python benchmarks/peers.py
python benchmarks/peers.py --models t5 gpt bert --write docs/performance.md
python benchmarks/peers.py --levanter ENVIRONMENT/bin/python
taskset -c 0 python benchmarks/peers.py --models bigbird xlnet --libraries t5x_like transformers --clock cpu

Both models of a comparison have equal sizes, float32, no dropout, and AdamW: T5 1.1 small, a decoder like GPT-2,
encoders like BERT, Longformer, BigBird, DeBERTa, XLNet and ModernBERT base (6 of its 22 layers), a decoder like Qwen 3
0.6B (4 of its 28 layers), and an LSTM language model, in torch from `torch.nn.LSTM`. All ten are compared by default.
Each library runs alone, in a new process with the memory of the machine to itself. The libraries take turns for several
rounds, so that slow phases of the machine affect all of them. Compilation and warm-up are not part of the time;
compiled programs are kept between the rounds. Levanter is compared where an environment of its own has it
(`levanter_step.py`), and only for the decoder. The floor is the time of the model's FLOPs at the rate of the step's
matrix products, each measured alone by both libraries in every round; the shortest time counts.

Random tokens fill all rows. BERT and DeBERTa predict 77 of 512 tokens, ModernBERT 307 of 1,024, Longformer 615 and
BigBird 75 of 4,096; transformers computes the logits of all of them. XLNet predicts 85 of 512 in both. `--clock cpu`
counts CPU seconds of the process, for one core of a machine with other work; `taskset` gives all libraries the same
core. `--write` replaces the table of this machine in a page, or adds it. With `LD_PRELOAD=libtcmalloc_minimal.so.4`,
all libraries allocate memory with tcmalloc, and the table is a separate one. The comparison of T5, GPT-2 and BERT takes
20 to 40 minutes on 2 cores, and less than two with `--sizes tiny`.
"""

import argparse
import contextlib
import os
import pathlib
import re
import statistics
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import levanter_step
import peer_steps
from levanter_step import LEVANTER, make_levanter
from peer_models import Sizes
from peer_steps import COMPILED, EAGER, OURS, Script, Step, make_ours, make_theirs

LIBRARIES = (OURS, EAGER, COMPILED)
NAMES = {"t5": "T5 1.1 small", "gpt": "like GPT-2", "bert": "like BERT"}
NAMES |= {"longformer": "like Longformer", "bigbird": "like BigBird", "deberta": "like DeBERTa", "xlnet": "like XLNet"}
NAMES |= {"lstm": "LSTM", "modernbert": "like ModernBERT", "qwen3": "like Qwen 3 0.6B"}
MODELS = {
    "t5": Sizes("t5", 8, 512, 114, 512, 1024, 6, 6, 8, 32128),
    "gpt": Sizes("gpt", 8, 512, 0, 512, 2048, 8, 8, 6, 50257),
    "bert": Sizes("bert", 8, 512, 77, 512, 2048, 8, 8, 6, 30522),
    "longformer": Sizes("longformer", 1, 4096, 615, 512, 2048, 8, 8, 6, 50265),
    "bigbird": Sizes("bigbird", 1, 4096, 75, 512, 2048, 8, 8, 6, 50358),
    "deberta": Sizes("deberta", 2, 512, 77, 512, 2048, 8, 8, 6, 50265),
    "xlnet": Sizes("xlnet", 2, 512, 85, 512, 2048, 8, 8, 6, 32000),
    "modernbert": Sizes("modernbert", 4, 1024, 307, 768, 1152, 12, 12, 6, 50368),
    "qwen3": Sizes("qwen3", 2, 512, 0, 1024, 3072, 16, 8, 4, 151936, head_dim=128),
    "lstm": Sizes("lstm", 32, 128, 0, 1024, 0, 0, 0, 1, 10000),
}
MAKERS: dict[str, Callable[[Sizes], Step]] = {
    OURS: lambda sizes: make_ours(sizes, attention="auto"),
    EAGER: lambda sizes: make_theirs(sizes, compiled=False, bfloat16=False),
    COMPILED: lambda sizes: make_theirs(sizes, compiled=True, bfloat16=False),
    LEVANTER: make_levanter,
}
# What measures time: elapsed seconds, or CPU seconds of the process.
CLOCKS = {"elapsed": time.perf_counter, "cpu": time.process_time}
WARMUP_STEPS = 3
# The floor: products are measured from the largest share of the FLOPs to the smallest until they have this share of
# all FLOPs, each for these seconds per round.
MEASURED_SHARE, PRODUCT_SECONDS = 0.98, 0.3
MARK = "<!-- peers: {} -->"

# ---- in the process of a library -------------------------------------------------------------------------------------


def measure_here(
    library: str, sizes: Sizes, *, steps: int, clock: str = "elapsed", products: list[list[int]] | None = None
) -> dict[str, Any]:
    """Measures a library in this process.

    Args:
      library: Name of the library.
      sizes: Sizes of the model.
      steps: Number of measured steps.
      clock: Key of `CLOCKS`.
      products: Matrix products whose shortest times are measured, as `[batch, rows, inner, columns, number]`; by
        default the large ones of the step, which only this library counts.

    Returns:
      `seconds` of each step, `products`, `product_seconds` of each of them, and what the library knows about the step.
    """
    step = MAKERS[library](sizes)
    seconds = [seconds_of(step.seconds, clock) for _ in range(WARMUP_STEPS + steps)][WARMUP_STEPS:]
    products = large_products(step.about["products"]) if products is None else products
    shortest = [shortest_seconds(step.multiply, *size, clock=clock) for *size, _ in products]
    return dict(step.about) | {"seconds": seconds, "products": products, "product_seconds": shortest}


def seconds_of(function: Callable[[], Any], clock: str) -> float:
    """Calls a function and returns its time."""
    started = CLOCKS[clock]()
    function()
    return CLOCKS[clock]() - started


def shortest_seconds(
    multiply: Callable[..., Callable[[], Any]], batch: int, rows: int, inner: int, columns: int, *, clock: str
) -> float:
    """Returns the shortest time of a product."""
    import numpy as np

    rng = np.random.default_rng(0)
    shapes = (batch, rows, inner), (batch, inner, columns)
    product = multiply(*(rng.random(shape if batch > 1 else shape[1:], np.float32) for shape in shapes))
    product()
    found, end = [], time.perf_counter() + PRODUCT_SECONDS
    while not found or time.perf_counter() < end:
        found.append(seconds_of(product, clock))
    return min(found)


SCRIPT = Script(__file__, measure_here)

# ---- in the main process ---------------------------------------------------------------------------------------------


def flops(product: Iterable[int]) -> float:
    """Returns the FLOPs of all products of a size."""
    batch, rows, inner, columns, count = product
    return 2.0 * batch * rows * inner * columns * count


def large_products(products: list[list[int]]) -> list[list[int]]:
    """Returns the products with the largest shares of the FLOPs, which determine the floor."""
    total, covered, found = sum(map(flops, products)), 0.0, []
    for product in sorted(products, key=flops, reverse=True):
        if covered < MEASURED_SHARE * total:
            found.append(product)
            covered += flops(product)
    return found


def floor_seconds(described: Mapping[str, Any], measured: Iterable[list[float]]) -> float:
    """Returns the time of the model's FLOPs at the rate of the step's products.

    Args:
      described: `flops` of the model, and its large `products`.
      measured: Seconds of these products, from each process that has measured them. The shortest time counts.

    Returns:
      Seconds.
    """
    products = described["products"]
    shortest = [min(seconds) for seconds in zip(*measured, strict=True)]
    seconds = sum(count * each for (*_, count), each in zip(products, shortest, strict=True))
    return described["flops"] * seconds / sum(map(flops, products))


def compare(
    model: str, sizes: Sizes, rounds: int, steps: int, pythons: Mapping[str, str], *, clock: str = "elapsed"
) -> str:
    """Returns a line of the table. A peer that fails, such as without a C++ compiler, has no time.

    Args:
      model: Key of the model.
      sizes: Its sizes.
      rounds: Number of processes of each library.
      steps: Number of measured steps of each process.
      pythons: Library -> the Python that runs it, in the order of the columns.
      clock: Key of `CLOCKS`.
    """
    compared = [name for name in pythons if name != LEVANTER or sizes.family in levanter_step.FAMILIES]
    found: dict[str, list[dict[str, Any]]] = {library: [] for library in compared}
    products = None
    for number in range(rounds):
        for library in list(found):
            options = {"steps": steps, "clock": clock, "products": products}
            measured = SCRIPT.measure(library, sizes, python=pythons[library], **options)
            if measured is None:
                if library == OURS:
                    raise SystemExit(f"{library} has failed; its error is above.")
                del found[library]
                continue
            products = measured["products"]
            found[library].append(measured)
            shown = ", ".join(f"{each:.2f}" for each in measured["seconds"])
            print(f"{model}, round {number + 1} of {rounds}, {library}: {shown} s", file=sys.stderr, flush=True)
    return table_row(model, found, list(pythons))


def table_row(model: str, found: Mapping[str, list[dict[str, Any]]], libraries: Iterable[str]) -> str:
    """Returns a line of the table.

    Args:
      model: Key of the model.
      found: Library -> results of `measure_here` in each round.
      libraries: The libraries of the columns.

    Returns:
      Median times, the ratio to the best peer, the floor, and the ratio to it.
    """
    medians = {
        library: statistics.median(seconds for each in results for seconds in each["seconds"])
        for library, results in found.items()
    }
    floor = floor_seconds(found[OURS][0], [each["product_seconds"] for results in found.values() for each in results])
    best = min((median for library, median in medians.items() if library != OURS), default=None)
    cells = [f"{medians[library]:.2f}" if library in medians else "–" for library in libraries]
    cells += [f"{best / medians[OURS]:.2f}" if best else "–", f"{floor:.2f}", f"{medians[OURS] / floor:.2f}"]
    return f"| {' | '.join([NAMES[model], *cells])} |"


@contextlib.contextmanager
def compilation_caches() -> Iterator[None]:
    """Lets the processes of this run share compiled programs, and no others."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": os.path.join(directory, "jax"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(directory, "torch"),
        }
        yield


def machine() -> str:
    """Returns the name of this machine's CPU, the cores of this process, and the libraries that all preload."""
    from t5x_like.runtime import cpu

    preloaded = (os.path.basename(path) for path in os.environ.get("LD_PRELOAD", "").replace(":", " ").split())
    cores = len(os.sched_getaffinity(0))
    return ", ".join([cpu.model_name(), "1 core" if cores == 1 else f"{cores} cores", *preloaded])


def write(path: pathlib.Path, text: str) -> None:
    """Replaces the table of this machine in a page, or adds it after the other tables.

    Raises:
      ValueError: The page has no mark for tables.
    """
    page, end = path.read_text(), MARK.format("end")
    if end not in page:
        raise ValueError(f"{path}: {end} not found. Add this line where the tables belong.")
    for mark in (MARK.format("none"), MARK.format(machine())):
        page = re.sub(re.escape(mark) + r".*?(?=<!-- peers: )", "", page, flags=re.DOTALL)
    mark = MARK.format(machine())
    path.write_text(page.replace(end, f"{mark}\n{text}\n\n{end}"))


def main() -> None:
    """Prints the table, or a measurement as a worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sizes", choices=("full", "tiny"), default="full")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each library")
    parser.add_argument("--steps", type=int, default=2, help="measured steps of each process")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--clock", choices=CLOCKS, default="elapsed", help="elapsed or CPU seconds")
    parser.add_argument("--levanter", metavar="PYTHON", help="the Python of an environment with Levanter")
    parser.add_argument("--write", type=pathlib.Path, metavar="PAGE", help="a Markdown page to put the table into")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return SCRIPT.answer(arguments.worker)
    if OURS not in arguments.libraries:
        parser.error(f"--libraries: {OURS} not found, whose step the others are compared with")
    pythons, versions = dict.fromkeys(arguments.libraries, sys.executable), peer_steps.versions()
    if arguments.levanter:
        pythons[LEVANTER] = arguments.levanter
        versions += f", {levanter_step.versions(arguments.levanter)}"
    lines = []
    with compilation_caches():
        for model in arguments.models:
            sizes = MODELS[model] if arguments.sizes == "full" else MODELS[model].tiny()
            lines.append(compare(model, sizes, arguments.rounds, arguments.steps, pythons, clock=arguments.clock))
    columns = ["model", *(f"{library}, s" for library in pythons), "best peer / t5x_like", "floor, s", "step / floor"]
    about = f"{machine()}; {versions}."
    clock = "" if arguments.clock == "elapsed" else " in CPU seconds"
    about += f" Medians{clock} of {arguments.rounds * arguments.steps} steps in {arguments.rounds} processes in turn:"
    text = f"{textwrap.fill(about, 110)}\n\n{peer_steps.table(columns, lines)}"
    print(text)
    if arguments.write:
        write(arguments.write, text)


if __name__ == "__main__":
    main()
