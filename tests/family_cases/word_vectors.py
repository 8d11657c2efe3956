"""The sizes of static word vectors. They have no layers, so the properties of Transformers do not apply to them."""

from family_case import VOCABULARY

from t5x_like.models.word_vectors import WordVectorsConfig

FAMILIES = {}
SMALL = {"word_vectors": WordVectorsConfig(vocab_size=VOCABULARY, embed_dim=24, initializer_bound=1.0)}
PARAMETERS = {"word_vectors/base": 3_000_000, "word_vectors/fasttext": 203_000_000}
