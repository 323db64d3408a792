import pytest
from support.protobuf_writer import write_sentencepiece

from bertkit.errors import ArtifactError
from bertkit.text.sentencepiece import read_sentencepiece

PIECES = [("<unk>", 0.0), ("▁word", -1.5), ("é", -2.25)]


def test_pieces_scores_and_characters_come_back(tmp_path):
    write_sentencepiece(tmp_path / "m", PIECES, 0, b"\x00map")
    assert read_sentencepiece(tmp_path / "m") == (PIECES, 0, b"\x00map")


def test_the_published_file_reads_as_with_its_own_description(data):
    """transformers carries SentencePiece's description of the format; protobuf reads by it."""
    pytest.importorskip("google.protobuf")
    import_protobuf = pytest.importorskip("transformers.convert_slow_tokenizer").import_protobuf
    file = data / "weights" / "vocabs" / "albert-base" / "spiece.model"
    expected, (pieces, unk, charsmap) = import_protobuf().ModelProto(), read_sentencepiece(file)
    expected.ParseFromString(file.read_bytes())
    assert pieces == [(piece.piece, piece.score) for piece in expected.pieces]
    assert unk == expected.trainer_spec.unk_id
    assert charsmap == expected.normalizer_spec.precompiled_charsmap != b""


@pytest.mark.parametrize("content", [b"", b"junk", b"\xff" * 100, bytes(50)])
def test_what_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ArtifactError, match="no SentencePiece model"):
        read_sentencepiece(tmp_path / "m")


def test_a_cut_off_file_and_another_kind_are_refused(tmp_path):
    write_sentencepiece(tmp_path / "m", PIECES, 0)
    whole = (tmp_path / "m").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "m").write_bytes(whole[:size])
        with pytest.raises(ArtifactError, match="damaged"):
            read_sentencepiece(tmp_path / "m")
    write_sentencepiece(tmp_path / "m", PIECES, 0, kind=2)
    with pytest.raises(ArtifactError, match="kind 2; expected kind 1, Unigram"):
        read_sentencepiece(tmp_path / "m")
