"""Compares the speed of generation on CPU with transformers, for models with random weights.

python benchmarks/decoding.py

Each library runs in a process of its own. The two generate in turn, so that other work on the machine slows down both.
8 rows generate 64 tokens each: T5 1.1 small after 512 inputs, and a decoder like GPT-2 (6 layers of width 512) after
prompts of 64 tokens. EOS is excluded, so that no row ends early. Compilation is not part of the time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

ROWS, NEW_TOKENS = 8, 64
INPUTS = {"t5": 512, "gpt": 64}
GPT_SIZES = {"layers": 6, "width": 512, "heads": 8}
LIBRARIES = ("t5x_like", "transformers")


def tokens(model: str) -> np.ndarray:
    """Returns random inputs or prompts without special tokens."""
    return np.random.default_rng(0).integers(2, 32000, (ROWS, INPUTS[model])).astype(np.int32)


def make_ours(model: str, beams: int) -> Callable[[], object]:
    """Returns a compiled function that generates with this library."""
    import jax

    from t5x_like import partitioning
    from t5x_like.decoding.generate import generate
    from t5x_like.decoding.settings import Decoding
    from t5x_like.models.base import for_platform
    from t5x_like.models.gpt import GPTConfig
    from t5x_like.models.t5 import T5Config

    width = GPT_SIZES["width"]
    gpt = GPTConfig(embed_dim=width, mlp_dim=4 * width, num_heads=GPT_SIZES["heads"], num_layers=GPT_SIZES["layers"])
    config = {"t5": T5Config(), "gpt": gpt}[model]
    partitioner = partitioning.Partitioner()
    loaded = partitioner.jit(for_platform(config, partitioner.platform).make)(jax.random.key(0))
    batch = {"encoder_input_tokens" if model == "t5" else "decoder_input_tokens": tokens(model)}
    decoding = Decoding(max_length=NEW_TOKENS, min_length=NEW_TOKENS, beams=beams, eos_ids=(1,), bos_id=0)
    compiled = partitioner.jit(lambda loaded, batch: generate(loaded, batch, decoding)).lower(loaded, batch).compile()
    return lambda: jax.device_get(compiled(loaded, batch).tokens)


def make_theirs(model: str, beams: int) -> Callable[[], object]:
    """Returns a function that generates with transformers and PyTorch."""
    import torch
    import transformers

    torch.manual_seed(0)
    if model == "t5":
        config = transformers.T5Config(
            vocab_size=32128, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_heads=6, decoder_start_token_id=0,
            feed_forward_proj="gated-gelu", tie_word_embeddings=False,
        )  # fmt: skip
        loaded = transformers.T5ForConditionalGeneration(config)
    else:
        sizes = {"n_embd": GPT_SIZES["width"], "n_layer": GPT_SIZES["layers"], "n_head": GPT_SIZES["heads"]}
        loaded = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    loaded, inputs = loaded.eval(), torch.from_numpy(tokens(model)).long()
    options = dict(max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, num_beams=beams, do_sample=False)
    options |= dict(attention_mask=torch.ones_like(inputs), pad_token_id=0, eos_token_id=1)

    def run():
        with torch.inference_mode():
            return loaded.generate(inputs, **options)

    return run


def work(library: str, model: str, beams: int) -> None:
    """Generates once per line of the standard input and prints the seconds; the first time is a warm-up."""
    run = {"t5x_like": make_ours, "transformers": make_theirs}[library](model, beams)
    for _ in sys.stdin:
        started = time.monotonic()
        generated = run()
        seconds = time.monotonic() - started
        assert generated.shape[-1] >= NEW_TOKENS
        print(json.dumps(seconds), flush=True)


def compare(model: str, beams: int, repetitions: int) -> None:
    """Prints a line of the table: the median tokens per second of both libraries."""
    workers = {
        library: subprocess.Popen(
            [sys.executable, __file__, "--worker", library, model, str(beams)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for library in LIBRARIES
    }  # fmt: skip
    seconds = {library: [] for library in LIBRARIES}
    for _ in range(1 + repetitions):
        for library, worker in workers.items():
            worker.stdin.write("\n")
            worker.stdin.flush()
            seconds[library].append(json.loads(worker.stdout.readline()))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    rates = {library: ROWS * NEW_TOKENS / statistics.median(found[1:]) for library, found in seconds.items()}
    ours, theirs = (rates[library] for library in LIBRARIES)
    print(f"| {model} | {beams} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=INPUTS, default=list(INPUTS))
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--worker", nargs=3, metavar=("LIBRARY", "MODEL", "BEAMS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker[:2], int(arguments.worker[2]))
    else:
        print("| model | beams | t5x_like, tokens/s | transformers, tokens/s | ratio |\n|---|---|---|---|---|")
        for chosen in arguments.models:
            for number in arguments.beams:
                compare(chosen, number, arguments.repetitions)
