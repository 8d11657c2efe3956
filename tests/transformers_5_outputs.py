"""Writes what transformers computes from directories that this package wrote; runs with the packages of version 5.

With labels, that is also the loss, all gradients, and hidden states; the model is then saved in `DIRECTORY/saved`.

    python tests/transformers_5_outputs.py CASES.json OUTPUTS.npz

CASES.json has a list of (name, directory, name of the class, arguments of the call, greedy tokens to generate).
"""

import json
import sys

import numpy as np
import torch
import transformers


def outputs(directory, kind, given, new_tokens):
    """Returns the logits, and the tokens after the inputs of the call if some are to be generated."""
    model, report = getattr(transformers, kind).from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager"
    )
    problems = {name: list(found) for name, found in report.items() if found}
    assert not problems, f"{directory}: {problems}"
    given = {name: torch.tensor(values) for name, values in given.items()}
    result = model.eval()(**given, output_hidden_states="labels" in given)
    found = {"logits": result.logits.detach().float().numpy()}
    if "labels" in given:
        result.loss.backward()
        found |= {"loss": result.loss.detach().numpy()}
        gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        found |= {f"gradients/{name}": each.numpy() for name, each in gradients.items()}
        states = {"encoder": result.encoder_hidden_states, "decoder": result.decoder_hidden_states}
        found |= {f"{stack}/{n}": x.detach().numpy() for stack, each in states.items() for n, x in enumerate(each)}
        model.save_pretrained(f"{directory}/saved")
    if new_tokens:
        inputs = {name: given[name] for name in ("input_ids", "attention_mask")}
        options = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}
        start = 1 if model.config.is_encoder_decoder else given["input_ids"].shape[1]
        with torch.no_grad():
            found["tokens"] = model.generate(**inputs, **options).numpy()[:, start:]
    return found


if __name__ == "__main__":
    cases, file = sys.argv[1:]
    with open(cases) as opened:
        found = {
            f"{name}/{key}": array
            for name, directory, kind, given, new_tokens in json.load(opened)
            for key, array in outputs(directory, kind, given, new_tokens).items()
        }
    np.savez(file, version=transformers.__version__, **found)
