"""Operations of a step with frozen parameters: by hand, and against XLA's count of the compiled gradient."""

import dataclasses

import jax
import pytest
import recipes
from families import FAMILIES

from t5x_like import optimizers
from t5x_like.adapters.lora import LoRA
from t5x_like.data.features import rows_of_shape
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.lstm import LSTMConfig
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.policy_gradient import GRPO, RLOO
from t5x_like.objectives.ppo import PPO
from t5x_like.objectives.preference_losses import DPO
from t5x_like.objectives.preferences import Preferences
from t5x_like.objectives.recurrent_lm import RecurrentLM
from t5x_like.objectives.rewards import Rewards
from t5x_like.objectives.rollouts import Rollouts
from t5x_like.partitioning import Partitioner
from t5x_like.training.program import make_program

ROWS, LENGTH = 8, 16
GPT = GPTConfig(vocab_size=64, embed_dim=32, mlp_dim=64, num_heads=2, head_dim=16, num_layers=2, max_length=LENGTH)


class ShapesOnly:
    def batch_shapes(self, spec):
        lengths = spec.model_lengths({"inputs": LENGTH, "targets": LENGTH})
        return {name: (ROWS, length) for name, length in lengths.items()}


def program(model, frozen=None, objective=None, data=None):
    groups = () if frozen is None else (optimizers.ParameterGroup(frozen, freeze=True),)
    return make_program(
        recipes.make(
            model=dataclasses.replace(model, dtype="float32"),
            objective=objective or CausalLM(),
            optimizer=optimizers.adamw(learning_rate=1e-3, groups=groups),
            data=data or ShapesOnly(),
            partitioner=Partitioner(devices=jax.devices()[:1], ici={"data": 1}),
        )
    )


def products():
    """Returns the FLOPs of a forward pass by hand: of the kernels of a layer, of its scores, and of the logits."""
    tokens = 2.0 * ROWS * LENGTH
    return {
        "attention": tokens * 4 * 32 * 32,
        "mlp": tokens * 2 * 32 * 64,
        "scores": tokens * 2 * LENGTH * 32,
        "logits": tokens * 32 * 64,
    }


@pytest.mark.parametrize("scan", [False, True])
def test_frozen_kernels_have_no_gradient(scan):
    config, count = dataclasses.replace(GPT, scan_layers=scan), products()
    forward = 2 * (count["attention"] + count["mlp"] + count["scores"]) + count["logits"]
    assert program(config).flops == 3 * forward
    # The gradients of the kernels of both feed-forward blocks are missing. A scan has one body for all layers.
    assert program(config, "mlp/.*kernel").flops == 3 * forward - 2 * count["mlp"]
    # Embeddings are the kernel of the logits. Below them, all activations have gradients.
    assert program(config, "embedder").flops == 3 * forward - count["logits"]
    # Nothing is below the final norm.
    trained = program(config, "^model/(?!decoder/norm)")
    assert trained.flops == forward + count["logits"]


REWARDS = Rewards({"counting_rewards.count": 1.0})


def policy_gradient(kind, samples=3, **settings):
    rollouts = Rollouts(rewards=REWARDS, samples=samples, max_length=4, eos_id=1, updates=settings.pop("updates", 1))
    return kind(rollouts, **settings)


# An objective with three samples per prompt -> the forward passes over the samples that a step equals.
POLICY_GRADIENTS = {
    "grpo": (policy_gradient(GRPO), 3),
    "grpo with a reference": (policy_gradient(GRPO, beta=0.5, updates=2), 3 + 1),
    "rloo": (policy_gradient(RLOO, beta=0.0), 3),
    "rloo with a reference": (policy_gradient(RLOO, beta=0.5), 3 + 1 + 1),
    "ppo": (policy_gradient(PPO, beta=0.0, updates=4), 3 + 1 / 4),
    "ppo with a reference": (policy_gradient(PPO, beta=0.5, updates=4), 3 + 1 / 4 + 1 / 4),
}


@pytest.mark.parametrize("name", POLICY_GRADIENTS)
def test_policy_gradients_count_prompts_and_samples_but_not_sampling(name):
    objective, passes = POLICY_GRADIENTS[name]
    config, rows = dataclasses.replace(GPT, max_length=32), (3 * ROWS, LENGTH + 4)
    forward = config.train_flops({"decoder_input_tokens": rows, "decoder_target_tokens": rows}) / 3
    frozen = "^objective/reference/" if objective.beta else None
    assert program(config, frozen, objective).flops == pytest.approx(passes * forward)


def test_a_reference_counts_its_forward_pass():
    """With LoRA, it is the model without the adapters."""

    class Pairs:
        def batch_shapes(self, spec):
            shapes = spec.row_shapes(dict.fromkeys(("targets_0", "targets_1"), LENGTH))
            return {name: (ROWS, *shape) for name, shape in shapes.items()}

    rows = dict.fromkeys(("decoder_input_tokens", "decoder_target_tokens"), (2 * ROWS, LENGTH))
    found = program(GPT, "^objective/reference/", Preferences(DPO()), Pairs()).flops
    assert found == pytest.approx(GPT.train_flops(rows) * 4 / 3)
    lora, base = dataclasses.replace(GPT, adapters=(LoRA(rank=4),)), "^model/(?!.*/adapter/)"
    grpo = [policy_gradient(GRPO, beta=beta) for beta in (0.5, 0.0)]
    with_reference, alone = (program(dataclasses.replace(lora, max_length=32), base, each).flops for each in grpo)
    rows = (3 * ROWS, LENGTH + 4)
    forward = GPT.train_flops({"decoder_input_tokens": rows, "decoder_target_tokens": rows}) / 3
    assert with_reference - alone == pytest.approx(forward) and 2 * forward < alone < 3 * forward


@pytest.mark.parametrize("remat", ["none", "full"])
def test_lora_on_a_frozen_base(remat):
    rank, tokens, count = 4, 2.0 * ROWS * LENGTH, products()
    config = dataclasses.replace(GPT, adapters=(LoRA(rank=rank, pattern="layers/mlp/wo$"),), remat=remat)
    forward = 2 * (count["attention"] + count["mlp"] + count["scores"]) + count["logits"]
    # Activations have gradients down to the update of the first layer, whose input has none. Scores are products of two
    # activations, which both have a gradient.
    activations = count["logits"] + count["attention"] + count["mlp"] + 2 * count["scores"]
    down, up = tokens * 64 * rank, tokens * rank * 32
    adapters = 2 * 3 * (down + up) - down
    assert program(config, "^model/(?!.*/adapter/)").flops == forward + activations + adapters
    assert program(config).flops == 3 * forward + 2 * 3 * (down + up)


def test_count_is_that_of_xla():
    config = dataclasses.replace(FAMILIES["bert"].config, **FAMILIES["bert"].flops_sizes, adapters=(LoRA(rank=4),))
    made = program(config, "^model/(?!.*/adapter/)", MaskedLM())
    counted = made.train_step.lower(*made.abstract_arguments()).compile().cost_analysis()["flops"]
    assert 1 <= counted / made.flops < 1.15
    rows = {name: rows_of_shape(shape, made.batch_axes[name]) for name, shape in made.batch_shapes.items()}
    assert made.flops < 0.8 * config.train_flops(rows)


@pytest.mark.full
def test_recurrent_model_with_state_and_frozen_layers():
    class Continuous(ShapesOnly):
        continuous = True

    def flops(frozen):
        config = LSTMConfig(vocab_size=64, embed_dim=32, embedding_dim=32, num_layers=2)
        return program(config, frozen, RecurrentLM(), Continuous()).flops

    assert flops(None) == 6.0 * ROWS * LENGTH * (2 * 4 * 32 * 64 + 32 * 64), "two layers, and logits of all tokens"
    # Without a gradient of the lower layer, nothing below it has one: neither its kernels nor its inputs.
    inputs, recurrent = 2.0 * ROWS * LENGTH * 4 * 32 * 32, 2.0 * ROWS * LENGTH * 4 * 32 * 32
    assert flops(None) - flops("layer_0/inputs/kernel") == pytest.approx(inputs)
    assert flops(None) - flops("layer_0|token_embedder") == pytest.approx(2 * inputs + 2 * recurrent + inputs)
