"""Times attention on one GPU with cuDNN and with the Triton kernels, forward, and forward and backward.

python benchmarks/attention_gpu.py
python benchmarks/attention_gpu.py --only 'bias|packed' --backends triton

Queries, keys and values are random, in bfloat16. FLOPs count the scores that a causal mask leaves, and nothing of a
backward pass that computes them again: 2 products per score forward and 5 backward. Neither TensorFlow nor SeqIO is
needed: pip install -e '.[cuda]' -c constraints.txt
"""

import argparse
import dataclasses
import re
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.kernels import attention as kernels
from t5x_like.kernels.dropout import Dropout
from t5x_like.kernels.masks import Mask
from t5x_like.kernels.relative_bias import RelativeBias
from t5x_like.kernels.scoring import Scoring
from t5x_like.partitioning import Partitioner

CALLS = 20
FORWARD, BACKWARD = 2, 5  # products per score


@dataclasses.dataclass(frozen=True)
class Case:
    """An attention problem: sizes, and what its scores have besides."""

    rows: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = False
    packed: bool = False
    biased: bool = False
    window: int | None = None
    softcap: float | None = None
    dropout_rate: float = 0.0

    def arrays(self) -> list[jax.Array]:
        """Returns queries, keys and values."""
        rng = np.random.default_rng(0)
        sizes = (self.heads, self.kv_heads, self.kv_heads)
        return [jnp.asarray(rng.normal(size=(self.rows, self.length, n, self.head_dim)), jnp.bfloat16) for n in sizes]

    def scoring(self) -> Scoring:
        """Returns mask, bias and dropout. Packed rows have four segments."""
        segments = None
        if self.packed:
            segments = jnp.asarray(np.sort(np.random.default_rng(0).integers(0, 4, (self.rows, self.length))))
        distances = jnp.arange(self.heads * (2 * self.length - 1), dtype=jnp.float32).reshape(self.heads, -1)
        return Scoring(
            mask=Mask(causal=self.causal, window=self.window, query_segments=segments, key_segments=segments),
            bias=RelativeBias(jnp.sin(distances)) if self.biased else None,
            scale=self.head_dim**-0.5,
            softcap=self.softcap,
            dropout=Dropout(self.dropout_rate),
            dropout_key=jax.random.key(0) if self.dropout_rate else None,
        )

    def flops(self, products: int) -> float:
        """Returns the FLOPs of products of the scores."""
        scores = self.rows * self.heads * self.length**2 * (0.5 if self.causal else 1.0)
        return 2.0 * products * scores * self.head_dim


CASES = {
    "BERT large": Case(32, 512, 16, 16, 64),
    "BERT large, packed": Case(32, 512, 16, 16, 64, packed=True),
    "GPT-2 medium": Case(16, 1024, 16, 16, 64, causal=True),
    "GPT-2 medium, dropout": Case(16, 1024, 16, 16, 64, causal=True, dropout_rate=0.1),
    "Llama 3.2 1B": Case(4, 2048, 32, 8, 64, causal=True),
    "Llama 3.2 1B, packed": Case(4, 2048, 32, 8, 64, causal=True, packed=True),
    "Llama 3.1 8B": Case(2, 4096, 32, 8, 128, causal=True),
    "Llama 3.1 8B, packed": Case(2, 4096, 32, 8, 128, causal=True, packed=True),
    "T5 1.1 base, bias": Case(64, 512, 12, 12, 64, biased=True),
    "T5 1.1 base, bias, packed": Case(64, 512, 12, 12, 64, biased=True, packed=True),
    "T5 1.1 base, bias of the decoder": Case(64, 114, 12, 12, 64, causal=True, biased=True),
    "ModernBERT large, window": Case(4, 8192, 16, 16, 64, window=65),
    "Gemma 2, softcap": Case(4, 2048, 8, 4, 256, causal=True, softcap=50.0),
}


def milliseconds(function: Callable, *arguments: jax.Array) -> float:
    """Returns the time of a call, of many that follow each other."""
    for _ in range(2):
        jax.block_until_ready(function(*arguments))
    started = time.perf_counter()
    results = [function(*arguments) for _ in range(CALLS)][-1]
    jax.block_until_ready(results)
    return 1000 * (time.perf_counter() - started) / CALLS


def line(name: str, case: Case, backend: str) -> str | None:
    """Measures a case, and returns a line of the table; None if the backend does not compute it."""
    q, k, v = case.arrays()
    scoring = case.scoring()
    with Partitioner(devices=jax.devices()[:1], attention=backend).bound() as partitioner:
        if kernels.backend_for(partitioner.mesh, q, k, scoring) != backend:
            return None

        def attend(q, k, v, bias):
            given = scoring if bias is None else dataclasses.replace(scoring, bias=RelativeBias(bias))
            return kernels.attention(q, k, v, given)

        def both(*arguments):
            output, pull = jax.vjp(attend, *arguments)
            return pull(jnp.ones_like(output))

        arguments = (q, k, v, scoring.bias.values if scoring.bias else None)
        forward, total = (milliseconds(jax.jit(function), *arguments) for function in (attend, both))
    rates = (case.flops(FORWARD) / forward, case.flops(FORWARD + BACKWARD) / total)
    cells = (name, backend, f"{forward:.3f}", f"{total:.3f}", *(f"{rate / 1e9:.0f}" for rate in rates))
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="measure the cases whose name matches")
    parser.add_argument("--backends", nargs="+", choices=("cudnn", "triton"), default=["cudnn", "triton"])
    arguments = parser.parse_args()
    if jax.default_backend() != "gpu":
        sys.exit("this machine has no GPU that JAX can use")
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}. Means of {CALLS} calls:\n")
    print("| attention | kernels | forward, ms | forward and backward, ms | TFLOP/s | TFLOP/s of both |")
    print("|---|---|---|---|---|---|")
    for name, case in CASES.items():
        if re.search(arguments.only, name):
            lines = (line(name, case, backend) for backend in arguments.backends)
            print(*filter(None, lines), sep="\n", flush=True)


if __name__ == "__main__":
    main()
