import pytest

from bayeslaw.errors import BayeslawError
from bayeslaw.files import require_writable, written_whole


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


def test_a_trial_changes_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("there before")
    require_writable(path)
    assert path.read_text() == "there before"
    assert list(tmp_path.iterdir()) == [path]
    for bad in (path / "below", tmp_path, "."):
        with pytest.raises(BayeslawError, match="cannot write"):
            require_writable(bad)
