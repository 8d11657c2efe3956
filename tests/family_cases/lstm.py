"""The sizes of LSTM language models. They have no attention, so the properties of Transformers do not apply to them."""

FAMILIES = {}
PARAMETERS = {"lstm/base": 55_676_288, "lstm/imdb": 116_609_430, "lstm/tiny": 1_580_544}
