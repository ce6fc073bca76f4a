"""Text from tokens as they come: the pieces together are the whole text, up to the first stop string."""

import random
from pathlib import Path

import pytest

from meshweave.errors import MeshweaveError
from meshweave.serving.text import FileTokenizer, TextStream

tokenizers = pytest.importorskip("tokenizers")

WORDS = ["a", "ß", "日本", " ", "\n", "🙂", "end", "é", "x" * 3, "👩‍👩‍👧"]


@pytest.fixture(scope="module")
def bytes_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    """Each token is a byte: most characters take several."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    file = tmp_path_factory.mktemp("text") / "tokenizer.json"
    made.save(str(file))
    return FileTokenizer(str(file))


def cut(text: str, stops: list[str]) -> str:
    """Return a text up to the stop string that is complete first, or of these the one that begins first."""
    for end in range(len(text) + 1):
        found = [text[:end].find(stop) for stop in stops if stop in text[:end]]
        if found:
            return text[: min(found)]
    return text


@pytest.mark.parametrize("seed", range(25))
def test_pieces_are_the_text(seed: int, bytes_tokenizer: FileTokenizer) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choices(WORDS, k=rng.randint(1, 12)))
    stops = rng.choice([[], ["end"], ["日本", "xx"], ["🙂", "nd"], ["zzz", " \n"]])
    stream, said = TextStream(bytes_tokenizer, stops), []
    for token in bytes_tokenizer.encode(text):
        said.append(stream.add(token))
        if stream.stopped:
            break
    said.append(stream.end())
    assert "".join(said) == cut(text, stops)
    assert not any("\ufffd" in piece for piece in said)
    if not stops:
        assert sum(map(bool, said)) == len(text), "a character is given when it is complete"


def test_half_a_character_at_the_end_is_given_as_such(bytes_tokenizer: FileTokenizer) -> None:
    stream = TextStream(bytes_tokenizer)
    pieces = [stream.add(token) for token in bytes_tokenizer.encode("a日")[:3]]
    assert pieces == ["a", "", ""] and stream.end() == "\ufffd"


def test_spaces_between_words_come_with_the_word_behind(tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"one": 0, "two": 1, "?": 2}, unk_token="?")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "t.json"))
    tokenizer = FileTokenizer(str(tmp_path / "t.json"))
    stream = TextStream(tokenizer)
    assert [stream.add(token) for token in tokenizer.encode("one two one")] == [
        "one",
        " two",
        " one",
    ]


def test_what_is_no_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    for name in ("t.json", "none.json"):
        with pytest.raises(MeshweaveError, match=f"{name}: no tokenizer: "):
            FileTokenizer(str(tmp_path / name))
