"""Generation settings of Hugging Face directories: `generate` of transformers 4.57 as fields of `Decoding`.

They are in generation_config.json, or in config.json if that file does not exist. Token ids come from
`special_token_fields`; here, only the ids that `generate` forces and several EOS ids are read.
"""

from collections.abc import Mapping
from typing import Any

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.interop import json_files

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"

# Key -> field of `Decoding` with the same meaning.
_SAME = {
    "num_beams": "beams",
    "length_penalty": "alpha",
    "early_stopping": "early_stopping",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "repetition_penalty": "repetition_penalty",
    "forced_bos_token_id": "forced_bos_id",
    "forced_eos_token_id": "forced_eos_id",
    "num_return_sequences": "samples",
}
_SAMPLING = ("temperature", "top_k", "top_p")
# Values of keys of `_SAMPLING` that are missing (`GenerationConfig` of transformers).
_SAMPLING_DEFAULTS = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
_LENGTHS = ("max_length", "min_length", "max_new_tokens", "min_new_tokens")
_OTHERS = ("do_sample", "stop_strings")
KEYS = frozenset({*_SAME, *_SAMPLING, *_LENGTHS, *_OTHERS})
# Keys that change what is generated and have no counterpart -> the value without effect.
UNSUPPORTED = {
    "num_beam_groups": 1,
    "diversity_penalty": 0,
    "penalty_alpha": None,
    "dola_layers": None,
    "min_p": None,
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "force_words_ids": None,
    "constraints": None,
    "renormalize_logits": False,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_decoder_ids": None,
    "sequence_bias": None,
    "token_healing": False,
    "guidance_scale": None,
    "watermarking_config": None,
    "max_time": None,
}
# Lengths of a decoder that include the prompt, whose length is not known here.
_WITH_PROMPT = ("max_length", "min_length")


def read(directory: str) -> tuple[str, dict[str, Any]]:
    """Reads the keys that change what is generated.

    Args:
      directory: Local directory or bucket.

    Returns:
      The file that has them, and key -> value. Empty if neither file exists.

    Raises:
      UserError: A file is not a valid JSON object.
    """
    for name in (GENERATION_CONFIG, CONFIG):
        if paths.is_file(file := paths.join(directory, name)):
            known = KEYS | UNSUPPORTED.keys() | {"eos_token_id"}
            return file, {key: value for key, value in json_files.read(file).items() if key in known}
    return "", {}


def to_decoding(values: Mapping[str, Any], file: str, *, has_encoder: bool) -> tuple[dict[str, Any], list[str]]:
    """Converts generation settings to fields of `Decoding`.

    Args:
      values: Key -> value, of `read`.
      file: The file, for messages.
      has_encoder: Whether the model is an encoder-decoder, whose lengths count the first input of the decoder.

    Returns:
      Field -> value of those that are set, and a message for each key that is ignored although it changes the result.

    Raises:
      UserError: A value is invalid.
    """
    given = {key: value for key, value in values.items() if value is not None}
    fields = {field: _checked(given[key], key, file) for key, field in _SAME.items() if key in given}
    ignored = [
        f"{file}: {key}={value!r} is not supported and has no effect"
        for key, value in given.items()
        if key in UNSUPPORTED and value != UNSUPPORTED[key]
    ]
    if not has_encoder:
        ignored += [
            f"{file}: {key}={given.pop(key)!r} includes the prompt and has no effect. Give max_length or min_length of "
            "Decoding, which count generated tokens"
            for key in _WITH_PROMPT
            if given.get(key)
        ]
    if isinstance(eos_ids := given.get("eos_token_id"), list) and len(eos_ids) > 1:
        fields["eos_ids"] = tuple(eos_ids)
    if stop := given.get("stop_strings"):
        fields["stop_strings"] = (stop,) if isinstance(stop, str) else tuple(stop)
    fields |= _lengths(given, file)
    if given.get("do_sample"):
        if fields.get("beams", 1) > 1:
            ignored.append(f"{file}: do_sample=True with num_beams={fields['beams']} is not supported: no sampling")
        else:
            fields |= {key: given.get(key, _SAMPLING_DEFAULTS[key]) for key in _SAMPLING}
    return fields, ignored


def _lengths(given: Mapping[str, Any], file: str) -> dict[str, int]:
    """Returns lengths in generated tokens. Those of an encoder-decoder count the first input of its decoder."""
    found = {}
    for field, key, new in (
        ("max_length", "max_length", "max_new_tokens"),
        ("min_length", "min_length", "min_new_tokens"),
    ):
        if new in given:
            found[field] = _integer(given[new], new, file)
        elif key in given:
            found[field] = max(_integer(given[key], key, file) - 1, 0)
    return found


def _integer(value: Any, key: str, file: str) -> int:
    if type(value) is not int:
        raise UserError(f"{file}: {key}={value!r} is not an integer. Correct the file.")
    return value


def _checked(value: Any, key: str, file: str) -> Any:
    """Returns a value; a list with one forced id is that id."""
    if key.endswith("_token_id") and isinstance(value, list):
        if len(value) != 1:
            raise UserError(f"{file}: {key}={value!r}: only one id is supported. Remove the others.")
        return value[0]
    return value
