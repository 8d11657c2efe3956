"""The sizes of LSTM language models over characters, to which the properties of Transformers do not apply."""

FAMILIES = {}
PARAMETERS = {"character_lstm/base": 41_122_912, "character_lstm/tiny": 283_640}
