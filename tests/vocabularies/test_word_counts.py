"""Files of words and counts, and what is computed from counts."""

import numpy as np
import pytest

from t5x_like.errors import UserError
from t5x_like.vocabularies import word_counts


def test_files_of_words_and_counts(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\ufeff</s> 4\nthe 7\n<unk> 3\nis 2\n. . 1\n")  # word2vec begins with the ends of sentences
    found = word_counts.read(str(path))
    assert found.words == ("the", "is", ". .") and found.counts.tolist() == [7, 2, 1]
    assert found.id_counts.tolist() == [0, 0, 0, 7, 2, 1]
    (tmp_path / "other.txt").write_bytes(word_counts.to_bytes(found))
    assert word_counts.read(str(tmp_path / "other.txt")).words == found.words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 7\nis\n", "vocab.txt:2: 'is' is not a word and its count"),
        ("the 7\nthe 2\n", "vocab.txt:2: 'the' occurs twice"),
        ("</s> 2\n", "no words"),
    ],
)
def test_invalid_files_raise(tmp_path, text, message):
    (tmp_path / "vocab.txt").write_text(text)
    with pytest.raises(UserError, match=message):
        word_counts.read(str(tmp_path / "vocab.txt"))
    (tmp_path / "other.model").write_bytes(b"\x80")
    with pytest.raises(UserError, match="VOCABULARY_PATH=.*other.model: a file of words and counts is not found"):
        word_counts.read(str(tmp_path / "other.model"))
    with pytest.raises(UserError, match="VOCABULARY_PATH is not set"):
        word_counts.read(None)


def test_unknown_counts_raise(tmp_path):
    (tmp_path / "vocab.txt").write_text("the 0\nis 0\n")
    with pytest.raises(UserError, match="the counts of its words are not known"):
        word_counts.read_known(str(tmp_path / "vocab.txt"))


def test_alias_table_has_the_unigram_distribution_to_the_power():
    counts = np.array([50, 16, 16, 1])
    expected = np.array([50**0.75, 8.0, 8.0, 1.0])
    table = word_counts.alias_table(counts**0.75)
    found = np.zeros(4)
    np.add.at(found, np.arange(4), table.keep)
    np.add.at(found, table.other, 1 - table.keep)
    np.testing.assert_allclose(found / 4, expected / expected.sum(), rtol=1e-6)


def test_subsampling_by_hand():
    counts = np.array([900, 100])  # frequencies 0.9 and 0.1
    found = word_counts.keep_probabilities(counts, 0.009)
    np.testing.assert_allclose(found, [0.1 + 0.01, 0.3 + 0.09], rtol=1e-6)
    assert word_counts.keep_probabilities(counts, 0.0).tolist() == [1, 1]


def test_huffman_codes_by_hand():
    # The two rarest words merge first: node 0 = c + d (3), node 1 = b + node 0 (6), the root 2 = a + node 1.
    codes = word_counts.huffman(np.array([7, 3, 2, 1]))
    assert codes.lengths.tolist() == [1, 2, 3, 3]
    assert codes.nodes.tolist() == [[2, 0, 0], [2, 1, 0], [2, 1, 0], [2, 1, 0]]
    # The smaller one of two merged nodes has bit 0: d before c, then node 0 before b (equal), node 1 before a.
    assert codes.bits.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    with pytest.raises(UserError, match="1 word has no tree"):
        word_counts.huffman(np.array([4]))


def published_huffman(counts):
    """Returns codes and nodes by the arrays of word2vec's program, written anew."""
    n = len(counts)
    count = np.concatenate([counts, np.full(n, 10**15)]).astype(int)
    binary, parent = np.zeros(2 * n, int), np.zeros(2 * n, int)
    first, second = n - 1, n
    for a in range(n - 1):
        least = []
        for _ in range(2):
            if first >= 0 and count[first] < count[second]:
                least.append(first)
                first -= 1
            else:
                least.append(second)
                second += 1
        count[n + a] = count[least].sum()
        parent[least] = n + a
        binary[least[1]] = 1
    found = []
    for word in range(n):
        at, bits, nodes = word, [], []
        while at != 2 * n - 2:
            bits.append(binary[at])
            nodes.append(parent[at] - n)
            at = parent[at]
        found.append((nodes[::-1], bits[::-1]))
    return found


def test_huffman_codes_equal_the_published_program():
    rng = np.random.default_rng(0)
    for size in (2, 3, 10, 60):
        counts = np.sort(rng.integers(1, 12, size))[::-1]  # many equal counts
        codes = word_counts.huffman(counts)
        for word, (nodes, bits) in enumerate(published_huffman(counts)):
            length = codes.lengths[word]
            assert codes.nodes[word, :length].tolist() == nodes
            assert codes.bits[word, :length].tolist() == bits
