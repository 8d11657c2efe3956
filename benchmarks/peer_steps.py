"""The training steps that `peers.py` and `peers_gpu.py` compare: of this library and of transformers, at equal sizes.

Each measurement is a process of its own, which has the memory of the machine to itself: `Script.measure` starts it, and
`Script.answer` runs in it. Random tokens fill all rows, there is no dropout, and the optimizer is AdamW. BERT of this
library predicts `targets` of its tokens, as do the encoders like it; transformers computes the logits of all of them.
XLNet predicts as many targets in both libraries, without a memory. DeBERTa has no mask decoder, as in transformers. An
LSTM language model, which transformers does not have, is made of torch's layers.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
OURS, OURS_XLA = "t5x_like", "t5x_like, XLA attention"
EAGER, COMPILED = "transformers", "transformers, compiled"
HEAD_DIM = 64
WINDOW = 256  # tokens that a token of Longformer sees on each side
LORA_RANK, LORA_ALPHA = 8, 16
SECONDS_OF_A_MEASUREMENT = 1800


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a model and of its batch.

    Attributes:
      family: `t5`, `bert`, `longformer`, `bigbird`, `deberta`, `xlnet`, `gpt`, `llama` or `lstm`.
      rows: Rows of a batch.
      inputs: Tokens of a row.
      targets: Tokens of T5's targets, masked tokens of BERT, or a sixth of XLNet's tokens.
      width: Size of a hidden state.
      mlp: Size within a feed-forward block.
      heads: Query heads of 64.
      kv_heads: Heads of keys and values.
      layers: Layers of a stack.
      vocabulary: Rows of the embeddings.
    """

    family: str
    rows: int
    inputs: int
    targets: int
    width: int
    mlp: int
    heads: int
    kv_heads: int
    layers: int
    vocabulary: int

    def tiny(self) -> "Sizes":
        """Returns sizes that check the same paths in little time."""
        return dataclasses.replace(
            self, rows=2, inputs=96, targets=16, width=128, mlp=128, heads=2, kv_heads=1, layers=1, vocabulary=128
        )


@dataclasses.dataclass(frozen=True)
class Step:
    """A compiled training step.

    Attributes:
      seconds: Makes a step and returns its time.
      multiply: `multiply(left, right)` prepares a product of two numpy arrays and returns a function that computes it.
      about: What the library knows about the step, in JSON types.
    """

    seconds: Callable[[], float]
    multiply: Callable[[Any, Any], Callable[[], Any]]
    about: Mapping[str, Any]


# ---- this library ----------------------------------------------------------------------------------------------------


def make_ours(sizes: Sizes, *, attention: str, lora: bool = False) -> Step:
    """Returns the step of this library on the first device.

    Args:
      sizes: Sizes.
      attention: See `Partitioner`.
      lora: Whether updates of rank 8 of the queries and values train alone.

    Returns:
      The step. `about` has the model FLOPs of a step, its matrix products as lists of batch, rows, inner size, columns
      and number, the name of the device, and its peak in bfloat16 if it is known.
    """
    import jax
    import jax.numpy as jnp

    from t5x_like.benchmarking import matrix_products, parts, synthetic, timing
    from t5x_like.metrics import throughput
    from t5x_like.training.program import make_program

    device = jax.devices()[0]
    recipe = our_recipe(sizes, device, attention=attention, lora=lora)
    program = make_program(recipe)
    batch = synthetic.make_batch(recipe.objective.features, program.batch_shapes, sizes.vocabulary)
    running = parts.RunningStep(program, 0, program.partitioner.put_batch(batch, program.batch_axes))
    counted = matrix_products.count_products(running.jaxpr)
    about = {
        "flops": program.flops,
        "products": [[each.batch, each.rows, each.inner, each.columns, count] for each, count in counted.items()],
        "device": device.device_kind,
        "peak_flops": throughput.peak_flops(device.device_kind),
    }

    def multiply(left, right):
        left, right, product = jnp.asarray(left), jnp.asarray(right), jax.jit(jnp.matmul)
        return lambda: jax.block_until_ready(product(left, right))

    return Step(lambda: timing.time_call(running), multiply, about)


def our_recipe(sizes: Sizes, device: Any, *, attention: str, lora: bool = False) -> Any:
    """Returns the recipe of the step of this library on a device; see `make_ours`."""
    from t5x_like import optimizers
    from t5x_like.adapters.lora import LoRA
    from t5x_like.partitioning import Partitioner
    from t5x_like.training.recipe import Periods, Recipe

    config, objective = _our_model(sizes)
    groups = ()
    if lora:
        config = dataclasses.replace(config, adapters=(LoRA(rank=LORA_RANK, alpha=LORA_ALPHA),))
        groups = (optimizers.ParameterGroup("^(?!.*/adapter/)", freeze=True),)
    return Recipe(
        model=config,
        objective=objective,
        optimizer=optimizers.adamw(learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, groups=groups),
        data=_Shapes(sizes),
        periods=Periods(total=1),
        partitioner=Partitioner(devices=[device], attention=attention),
    )


@dataclasses.dataclass(frozen=True)
class _Shapes:
    """A data source that only has the shapes of its batches."""

    sizes: Sizes

    def batch_shapes(self, spec):
        targets = self.sizes.targets or self.sizes.inputs
        lengths = {"inputs": self.sizes.inputs, "targets": targets}
        return {name: (self.sizes.rows, *shape) for name, shape in spec.row_shapes(lengths).items()}


def _our_model(sizes: Sizes) -> tuple[Any, Any]:
    """Returns the configuration and the objective."""
    from t5x_like.models.bert import BertConfig
    from t5x_like.models.bigbird import BigBirdConfig
    from t5x_like.models.deberta import DebertaConfig
    from t5x_like.models.gpt import GPTConfig
    from t5x_like.models.llama import LlamaConfig
    from t5x_like.models.longformer import LongformerConfig
    from t5x_like.models.lstm import LSTMConfig
    from t5x_like.models.t5 import T5Config
    from t5x_like.models.xlnet import XLNetConfig
    from t5x_like.objectives.causal_lm import CausalLM
    from t5x_like.objectives.masked_lm import MaskedLM
    from t5x_like.objectives.permutation_lm import PermutationLM
    from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

    if sizes.family == "lstm":
        widths = {"embed_dim": sizes.width, "embedding_dim": sizes.width}
        return LSTMConfig(vocab_size=sizes.vocabulary, **widths, num_layers=sizes.layers), CausalLM()
    shared = {
        "vocab_size": sizes.vocabulary,
        "embed_dim": sizes.width,
        "mlp_dim": sizes.mlp,
        "num_heads": sizes.heads,
        "head_dim": HEAD_DIM,
        "dropout_rate": 0.0,
    }
    if sizes.family == "t5":
        return T5Config(**shared, encoder_layers=sizes.layers, decoder_layers=sizes.layers), SequenceToSequence()
    shared |= {"num_layers": sizes.layers, "attention_dropout_rate": 0.0}
    if sizes.family == "xlnet":
        return XLNetConfig(**shared, memory_length=0, reuse_length=0), PermutationLM()
    shared["max_length"] = sizes.inputs
    if sizes.family == "llama":
        return LlamaConfig(**shared, num_kv_heads=sizes.kv_heads, tied_embeddings=True), CausalLM()
    if sizes.family == "longformer":
        return LongformerConfig(**shared, window=WINDOW), MaskedLM()
    if sizes.family in ("bigbird", "deberta"):
        return (BigBirdConfig if sizes.family == "bigbird" else DebertaConfig)(**shared), MaskedLM()
    return (GPTConfig(**shared), CausalLM()) if sizes.family == "gpt" else (BertConfig(**shared), MaskedLM())


# ---- transformers ----------------------------------------------------------------------------------------------------


def make_theirs(sizes: Sizes, *, compiled: bool, bfloat16: bool, lora: bool = False) -> Step:
    """Returns the step of transformers on the first GPU, or on the CPU without one.

    Args:
      sizes: Sizes.
      compiled: Whether `torch.compile` compiles the model.
      bfloat16: Whether computations are in bfloat16, by autocast, and those that stay in float32 use TF32.
      lora: Whether peft's updates of rank 8 of the queries and values train alone.

    Returns:
      The step.
    """
    import torch

    torch.manual_seed(0)
    # As XLA does. With the initial parameters of transformers, most probabilities of T5 are denormal numbers, with
    # which products on an Intel CPU take ten times as long. Threads inherit the setting, so it precedes them.
    torch.set_flush_denormal(True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high" if bfloat16 else "highest")
    network, batch = _their_model(sizes)
    if lora:
        import peft

        network = peft.get_peft_model(network, peft.LoraConfig(r=LORA_RANK, lora_alpha=LORA_ALPHA))
    network = network.to(device).train()
    batch = {name: values.to(device) for name, values in batch.items()}
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    called = torch.compile(network) if compiled else network

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            loss = called(**batch).loss
        loss.backward()
        optimizer.step()

    def seconds():
        started = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    def multiply(left, right):
        left, right = torch.from_numpy(left), torch.from_numpy(right)
        return lambda: torch.matmul(left, right)

    return Step(seconds, multiply, {})


def _their_model(sizes: Sizes) -> tuple[Any, dict[str, Any]]:
    """Returns the network, and a batch of random tokens."""
    import torch
    import transformers

    def tokens(length):
        return torch.randint(2, sizes.vocabulary, (sizes.rows, length))

    inputs = tokens(sizes.inputs)
    if sizes.family == "lstm":
        return _torch_lstm(sizes), {"input_ids": inputs, "labels": inputs}
    if sizes.family == "t5":
        t5 = transformers.T5Config(
            vocab_size=sizes.vocabulary, d_model=sizes.width, d_kv=HEAD_DIM, d_ff=sizes.mlp, num_layers=sizes.layers,
            num_heads=sizes.heads, decoder_start_token_id=0, feed_forward_proj="gated-gelu", dropout_rate=0.0,
            tie_word_embeddings=False, use_cache=False,
        )  # fmt: skip
        return transformers.T5ForConditionalGeneration(t5), {"input_ids": inputs, "labels": tokens(sizes.targets)}
    if sizes.family == "gpt":
        gpt = transformers.GPT2Config(
            vocab_size=sizes.vocabulary, n_embd=sizes.width, n_inner=sizes.mlp, n_layer=sizes.layers,
            n_head=sizes.heads, n_positions=sizes.inputs, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            use_cache=False,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(gpt), {"input_ids": inputs, "labels": inputs}
    if sizes.family == "xlnet":
        return _their_xlnet(sizes, inputs)
    shared = {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.mlp,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "max_position_embeddings": sizes.inputs,
    }
    if sizes.family == "llama":
        llama = transformers.LlamaConfig(
            **shared, num_key_value_heads=sizes.kv_heads, head_dim=HEAD_DIM, tie_word_embeddings=True, use_cache=False,
            pad_token_id=0, bos_token_id=1, eos_token_id=1,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(llama), {"input_ids": inputs, "labels": inputs}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    masked = torch.arange(sizes.inputs) < sizes.targets
    batch = {"input_ids": inputs, "labels": inputs.where(masked, -100)}
    if sizes.family == "longformer":
        shared |= {"max_position_embeddings": sizes.inputs + 2, "type_vocab_size": 1, "attention_window": 2 * WINDOW}
        return transformers.LongformerForMaskedLM(transformers.LongformerConfig(**shared, **dropout)), batch
    if sizes.family == "bigbird":
        return transformers.BigBirdForMaskedLM(transformers.BigBirdConfig(**shared, **dropout)), batch
    if sizes.family == "deberta":
        relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
        deberta = transformers.DebertaConfig(**shared, **dropout, **relative, type_vocab_size=0, layer_norm_eps=1e-7)
        return transformers.DebertaForMaskedLM(deberta), batch
    bert = transformers.BertConfig(**shared, hidden_act="gelu_new", **dropout)
    return transformers.BertForMaskedLM(bert), batch


def _torch_lstm(sizes: Sizes) -> Any:
    """Returns an LSTM language model of torch's layers, which is called as the models of transformers."""
    import types

    import torch

    class LanguageModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(sizes.vocabulary, sizes.width)
            self.lstm = torch.nn.LSTM(sizes.width, sizes.width, sizes.layers, batch_first=True)
            self.logits = torch.nn.Linear(sizes.width, sizes.vocabulary)

        def forward(self, input_ids, labels):
            states, _ = self.lstm(self.embedding(input_ids))
            loss = torch.nn.functional.cross_entropy(self.logits(states).flatten(0, 1), labels.flatten())
            return types.SimpleNamespace(loss=loss)

    return LanguageModel()


def _their_xlnet(sizes: Sizes, inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Returns XLNet, and a batch of random permutations, whose first targets are predicted by the second stream."""
    import torch
    import transformers

    config = transformers.XLNetConfig(
        vocab_size=sizes.vocabulary, d_model=sizes.width, d_inner=sizes.mlp, n_layer=sizes.layers,
        n_head=sizes.heads, dropout=0.0, mem_len=None, use_mems_eval=False, use_mems_train=False,
    )  # fmt: skip
    ranks = torch.argsort(torch.rand(inputs.shape), dim=1)
    positions = torch.argsort(torch.rand(inputs.shape), dim=1)[:, : sizes.targets]
    batch = {
        "input_ids": inputs,
        "perm_mask": (ranks[:, None, :] >= ranks[:, :, None]).float(),
        "target_mapping": torch.nn.functional.one_hot(positions, sizes.inputs).float(),
        "labels": torch.gather(inputs, 1, positions),
    }
    return transformers.XLNetLMHeadModel(config), batch


# ---- processes -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Script:
    """A benchmark that measures each library in a process of its own: the script itself, with `--worker`.

    Attributes:
      path: Path of the script.
      measure_here: `measure_here(library, sizes, **request)` measures in the current process and returns JSON types.
    """

    path: str
    measure_here: Callable[..., dict[str, Any]]

    def measure(
        self, library: str, sizes: Sizes, *, python: str = sys.executable, **request: Any
    ) -> dict[str, Any] | None:
        """Calls `measure_here` in a new process. Its logs and errors are on the standard error.

        Args:
          library: Name of the library.
          sizes: Sizes of the model.
          python: The Python that runs the process.
          **request: Further arguments of `measure_here`, in JSON types.

        Returns:
          The result, or None if the process fails, such as without a C++ compiler or without enough memory.
        """
        asked = {"library": library, "sizes": dataclasses.asdict(sizes), **request}
        try:
            done = subprocess.run(
                [python, self.path, "--worker", json.dumps(asked)], stdout=subprocess.PIPE, text=True,
                env=os.environ | {"USE_TF": "0"}, timeout=SECONDS_OF_A_MEASUREMENT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            print(f"{library}: {error}", file=sys.stderr)
            return None
        if done.returncode:
            print(f"{library}: the process has failed with exit code {done.returncode}", file=sys.stderr)
            return None
        return json.loads(done.stdout.splitlines()[-1])

    def answer(self, worker: str) -> None:
        """Prints the result of a request in a process that `measure` has started.

        Args:
          worker: The value of `--worker`.
        """
        request = json.loads(worker)
        library, sizes = request.pop("library"), Sizes(**request.pop("sizes"))
        if library in (OURS, OURS_XLA):
            from t5x_like.runtime import malloc

            malloc.restart_with_tunables()  # as the commands of t5x_like do
        print(json.dumps(self.measure_here(library, sizes, **request)))


def versions() -> str:
    """Returns the versions of the libraries."""
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("jax", "torch", "transformers"))


def table(columns: list[str], lines: list[str]) -> str:
    """Returns a table in Markdown."""
    return "\n".join([f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *lines])
