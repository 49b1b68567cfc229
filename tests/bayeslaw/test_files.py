import pytest

from bayeslaw.errors import BayeslawError
from bayeslaw.files import written_whole


def test_a_failed_write_keeps_what_was_there(tmp_path):
    path = tmp_path / "deep" / "file"
    with written_whole(path) as partial:
        partial.write_text("first")

    def interrupted():
        with written_whole(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BayeslawError, match="cannot write"), written_whole(tmp_path / "file" / "below"):
        pass
