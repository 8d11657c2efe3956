"""Losses and their gradients against torch, on the modules of transformers with hooks.

Each loss is written in torch as in the published code or paper: DistilBERT, Patient-KD, TinyBERT, MiniLM, MiniLMv2 and
MobileBERT. The rows have padding, which no loss counts. numerics.py defines the tolerance.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from t5x_like import interop, parameters
from t5x_like.distillation import layer_maps, losses
from t5x_like.distillation.loss import ForwardPass, ModelSpec
from t5x_like.interop import tables
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import forward

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")
F = torch.nn.functional

pytestmark = pytest.mark.parity

ROWS, LENGTH, VOCAB, HEADS, PREDICTIONS = 3, 9, 31, 2, 2
LENGTHS = np.array([LENGTH, LENGTH - 2, LENGTH - 5])
WIDTHS = {"student": 12, "teacher": 12, "wide": 16}
LAYERS = {"student": 2, "teacher": 4, "wide": 4}
PAIRS = ((0, 1), (1, 3))


def make_reference(name, seed):
    """Makes a BERT of transformers with random weights."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTHS[name],
        intermediate_size=18,
        num_attention_heads=HEADS,
        num_hidden_layers=LAYERS[name],
        max_position_embeddings=16,
        attn_implementation="eager",
    )
    reference = transformers.BertForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return reference


def make_batch():
    rng = np.random.default_rng(0)
    valid = np.arange(LENGTH) < LENGTHS[:, None]
    positions = np.stack([np.sort(rng.choice(length, PREDICTIONS, replace=False)) for length in LENGTHS])
    batch = {
        "encoder_input_tokens": np.where(valid, rng.integers(1, VOCAB, (ROWS, LENGTH)), 0),
        "encoder_segment_ids": valid,
        "masked_positions": positions,
        "masked_targets": rng.integers(0, VOCAB, (ROWS, PREDICTIONS)),
        "masked_weights": np.ones((ROWS, PREDICTIONS)),
    }
    return {name: array.astype(np.int32) for name, array in batch.items()}


class Outputs:
    """What a BERT of transformers computes: logits, hidden states, and the vectors and scores of its attention."""

    def __init__(self, reference, batch):
        self.vectors = {what: [] for what in ("query", "key", "value")}
        hooks = []
        for layer in reference.bert.encoder.layer:
            for what, found in self.vectors.items():
                module = getattr(layer.attention.self, what)
                hooks.append(module.register_forward_hook(lambda _, __, output, found=found: found.append(output)))
        self.valid = torch.tensor(batch["encoder_segment_ids"]).bool()
        tokens = torch.tensor(batch["encoder_input_tokens"]).long()
        outputs = reference(tokens, attention_mask=self.valid.long(), output_hidden_states=True)
        for hook in hooks:
            hook.remove()
        self.logits, self.states = outputs.logits, outputs.hidden_states

    def relation(self, query, key, heads):
        """Returns scaled inner products `[rows, heads, length, length]` of two kinds of vectors."""
        split = [x.view(ROWS, LENGTH, heads, -1).transpose(1, 2) for x in (query, key)]
        return split[0] @ split[1].transpose(-1, -2) / split[0].shape[-1] ** 0.5

    def scores(self, layer):
        return self.relation(self.vectors["query"][layer], self.vectors["key"][layer], HEADS)

    def masked(self, scores, value):
        return scores.masked_fill(~self.valid[:, None, None, :], value)


def attention_divergence(s, t, kind):
    """Compares softmax of scores per query: the mean over heads and queries that are not padding."""
    p = torch.softmax(t, -1)
    per_query = -(p * torch.log_softmax(s, -1)).nan_to_num().sum(-1)
    if kind == "kl":
        per_query = per_query + torch.special.xlogy(p, p).sum(-1)
    return per_query


def in_torch(name, s, t, fit):
    """Computes a loss from the `Outputs` of the student and a teacher."""
    valid = s.valid

    def attention(layer_s, layer_t, kind):
        found = attention_divergence(*(x.masked(x.scores(i), -1e9) for x, i in ((s, layer_s), (t, layer_t))), kind)
        return found.mean(1)[valid].mean()

    def relations(kinds, heads):
        return sum(
            attention_divergence(
                *(x.masked(x.relation(x.vectors[kind][-1], x.vectors[kind][-1], heads), -1e9) for x in (s, t)), "kl"
            )
            .mean(1)[valid]
            .mean()
            for kind in kinds
        )

    def zeroed(x, layer):
        return x.masked(x.scores(layer), 0.0).transpose(1, 2)[valid]

    def normalized(x, layer):
        return F.layer_norm(x.states[layer + 1], (x.states[0].shape[-1],), eps=1e-12)[valid]

    def moments(function):
        return [(function(s.states[i + 1])[valid], function(t.states[j + 1])[valid]) for i, j in PAIRS]

    match name:
        case "kl":  # DistilBERT: KLDivLoss(reduction="batchmean") over the attended tokens
            log_q, p = F.log_softmax(s.logits[valid] / 2, -1), F.softmax(t.logits[valid] / 2, -1)
            return torch.nn.KLDivLoss(reduction="batchmean")(log_q, p) * 2**2
        case "cosine":
            ones = torch.ones(int(valid.sum()))
            return torch.nn.CosineEmbeddingLoss()(s.states[-1][valid], t.states[-1][valid], ones)
        case "patient":  # of [CLS], stacked [rows, layers, features]
            stacks = [torch.stack([x.states[pair[n] + 1][:, 0] for pair in PAIRS], 1) for n, x in enumerate((s, t))]
            return F.mse_loss(*(F.normalize(stack, p=2, dim=2) for stack in stacks))
        case "hidden":  # TinyBERT: the embeddings and all layers through one linear map
            states = [(s.states[0], t.states[0]), *((s.states[i + 1], t.states[j + 1]) for i, j in PAIRS)]
            return sum(F.mse_loss(fit(ours[valid]), theirs[valid]) for ours, theirs in states)
        case "scores":
            return sum(F.mse_loss(zeroed(s, i), zeroed(t, j)) for i, j in PAIRS)
        case "attention_kl":
            return attention(1, 3, "kl")
        case "value_relations":
            return relations(("value",), HEADS)
        case "relations":
            return relations(("query", "key", "value"), 4)
        case "attention_transfer":
            return sum(attention(i, j, "cross_entropy") for i, j in PAIRS) / len(PAIRS)
        case "feature_map":
            return sum(F.mse_loss(normalized(s, i), normalized(t, j)) for i, j in PAIRS) / len(PAIRS)
        case "feature_mean":
            return sum(F.mse_loss(*pair) for pair in moments(lambda x: x.mean(-1))) / len(PAIRS)
        case "feature_variance":
            return sum(F.l1_loss(*pair) for pair in moments(lambda x: x.var(-1, unbiased=False))) / len(PAIRS)


# Name -> (teacher, loss).
LOSSES = {
    "kl": ("teacher", losses.ForwardKL(prediction="all_tokens", temperature=2.0)),
    "cosine": ("teacher", losses.HiddenCosine()),
    "patient": ("teacher", losses.PatientCLS(layers=PAIRS)),
    "hidden": ("wide", losses.HiddenMSE(layers=layer_maps.every(2), embeddings=True)),
    "scores": ("wide", losses.AttentionScoresMSE(layers=layer_maps.uniform())),
    "attention_kl": ("wide", losses.AttentionKL(layers=layer_maps.last(1))),
    "value_relations": ("wide", losses.Relations(of=("value",), layers=layer_maps.last(1))),
    "relations": ("wide", losses.Relations(relation_heads=4, layers=((-1, -1),))),
    "attention_transfer": ("teacher", losses.AttentionTransfer(layers=PAIRS)),
    "feature_map": ("teacher", losses.FeatureMap(layers=PAIRS)),
    "feature_mean": ("teacher", losses.FeatureMean(layers=PAIRS)),
    "feature_variance": ("teacher", losses.FeatureVariance(layers=PAIRS)),
}


def read(reference, directory):
    """Returns the configuration and parameters of a reference."""
    reference.save_pretrained(directory, safe_serialization=True)
    config, model = interop.from_huggingface(directory)
    like = jax.eval_shape(MaskedLM().init, jax.random.key(0), model)
    heads = {
        name.removeprefix(tables.OBJECTIVE): leaf
        for name, leaf in interop.read(directory, config).items()
        if name.startswith(tables.OBJECTIVE)
    }
    return config, {"model": model, "objective": parameters.rebuild(like, heads)}


def view(network, params, batch, capture):
    found = forward(network.objective, params, batch, capture=tuple(capture))
    return ForwardPass(network, found.outputs, batch, lambda: found.predictions)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Returns all losses and their gradients, here and in torch, and DistilBERT's masked-LM loss of the student."""
    batch = make_batch()
    references = {name: make_reference(name, seed) for seed, name in enumerate(WIDTHS)}
    networks, params = {}, {}
    for name, reference in references.items():
        config, params[name] = read(reference, str(tmp_path_factory.mktemp(name)))
        networks[name] = ModelSpec(name, config, MaskedLM())
    student = networks["student"]
    pairs = {name: (loss, networks[teacher]) for name, (teacher, loss) in LOSSES.items()}
    for loss, teacher in pairs.values():
        loss.check(student, teacher)
    heads = {name: loss.init(jax.random.key(1), student, teacher) for name, (loss, teacher) in pairs.items()}
    captures = {name: loss.captures(student, teacher) for name, (loss, teacher) in pairs.items()}

    def values(trained):
        ours = view(student, trained["student"], batch, {each for both in captures.values() for each in both[0]})
        found = {}
        for teacher in ("teacher", "wide"):
            needed = {each for name, both in captures.items() if LOSSES[name][0] == teacher for each in both[1]}
            theirs = view(networks[teacher], params[teacher], batch, needed)
            for name, (loss, network) in pairs.items():
                if network.name == teacher:
                    value = loss(trained["heads"][name], ours, theirs)
                    found[name] = value / loss.weights(batch, student.objective).sum()
        return found

    trained = {"student": params["student"], "heads": heads}

    @jax.jit
    def values_and_gradients(trained):
        found, pull_back = jax.vjp(values, trained)
        each = dict(zip(found, jnp.eye(len(found)), strict=True))
        return found, jax.vmap(pull_back)(each)[0]

    found, stacked = values_and_gradients(trained)

    fit = torch.nn.Linear(WIDTHS["student"], WIDTHS["wide"])
    with torch.no_grad():
        fit.weight.copy_(torch.tensor(np.asarray(heads["hidden"]["projection"].kernel[...]).T))
        fit.bias.copy_(torch.tensor(np.asarray(heads["hidden"]["projection"].bias[...])))
    outputs = {name: Outputs(reference, batch) for name, reference in references.items()}
    expected, expected_gradients = {}, {}
    named = dict(references["student"].named_parameters()) | {f"fit.{name}": p for name, p in fit.named_parameters()}
    for name, (teacher, _) in LOSSES.items():
        loss = in_torch(name, outputs["student"], outputs[teacher], fit)
        grads = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        expected[name] = loss.item()
        expected_gradients[name] = {
            key: np.zeros(p.shape) if grad is None else grad.numpy()
            for (key, p), grad in zip(named.items(), grads, strict=True)
        }
    actual_gradients = {}
    for number, name in enumerate(found):
        gradient = jax.tree.map(lambda x, number=number: x[number], stacked)
        tensors = interop.tensors_to_huggingface(gradient["student"], student.config)
        projection = gradient["heads"]["hidden"]["projection"]
        actual_gradients[name] = {key: np.asarray(tensor) for key, tensor in tensors.items()} | {
            "fit.weight": np.asarray(projection.kernel[...]).T,
            "fit.bias": np.asarray(projection.bias[...]),
        }
    return found, expected, actual_gradients, expected_gradients


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient(compared, name):
    found, expected, gradients, expected_gradients = compared
    assert expected[name] > 1e-3
    assert_close({name: found[name]}, {name: expected[name]})
    # The bias of the keys adds a constant to the scores of a query, which the softmax removes. Unless a loss reads
    # scores or keys, its gradient is nothing but rounding errors.
    reads_keys = name in ("scores", "relations")
    names = [key for key in gradients[name] if reads_keys or not key.endswith("key.bias")]
    assert_close({key: gradients[name][key] for key in names}, {key: expected_gradients[name][key] for key in names})
