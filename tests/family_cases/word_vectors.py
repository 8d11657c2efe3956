"""The sizes of static word vectors. They have no layers, so the properties of Transformers do not apply to them."""

FAMILIES = {}
PARAMETERS = {"word_vectors/base": 3_000_000, "word_vectors/fasttext": 203_000_000}
