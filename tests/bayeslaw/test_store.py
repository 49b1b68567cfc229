"""The MLflow store: found, told apart from what is none, its passwords kept."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading

import pytest

from bayeslaw import store
from bayeslaw.errors import TrackingError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:secret@host:5000/x", "http://me:***@host:5000/x"),
        ("cannot open postgresql+psycopg://u:s3c:r@t@h/db now", "cannot open postgresql+psycopg://u:***@h/db now"),
        ("postgresql://h/db?user=u&password=secret&x=1", "postgresql://h/db?user=u&password=***&x=1"),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("sqlite:////data/mlflow.db", "sqlite:////data/mlflow.db"),
    ],
)
def test_passwords_are_blanked(text, shown):
    assert store.scrubbed(text) == store.public_uri(text) == shown


def test_a_server_is_found_by_an_address_with_a_name_and_password():
    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    seen: list[str] = []
    with http.server.HTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store._require_answer(f"http://user:s3cret@127.0.0.1:{server.server_port}/below/")
        server.shutdown()
    assert seen == ["/below/health"]


WRITE = """
import sys
from bayeslaw import store
client = store.connect(sys.argv[1])
client.set_tag(sys.argv[2], "seen", sys.argv[3])
"""


@pytest.mark.slow
def test_a_second_look_does_not_leave_the_first_in_the_past(store_uri):
    """Opening and closing the file would drop sqlite's locks: another process would then take the log away."""
    client = store.connect(store_uri)
    run = client.create_run("0").info.run_id
    for text in ("one", "two"):
        store.connect(store_uri)
        subprocess.run([sys.executable, "-c", WRITE, store_uri, run, text], check=True)
        assert client.get_run(run).data.tags["seen"] == text


def test_what_is_no_database_is_left_alone(tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_text("something else, of more than a hundred characters " * 10)
    with pytest.raises(TrackingError, match="is no sqlite database"):
        store.connect(f"sqlite:///{path}")
    assert path.read_text().startswith("something else")
