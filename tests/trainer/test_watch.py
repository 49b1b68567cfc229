"""What a worker hears beside the training."""

from __future__ import annotations

import os
import signal
import time

import pytest

from trainer.signals import Signals
from trainer.watch import Watch


def wait(true):
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_that_is_to_end_is_interrupted_and_nothing_else():
    with Watch() as watch:
        with pytest.raises(SystemExit), watch.over(lambda: True):
            time.sleep(10)
        assert watch.ended
        watch.heed()
        with watch.over(lambda: False):
            assert not watch.ended


def test_a_request_to_stop_is_not_taken_for_the_end_of_a_run():
    """It comes while a cancelled run is stopping, where the training takes it for the same."""
    with Watch() as watch:
        with watch.over(lambda: True), Signals(grace=60) as signals:
            wait(lambda: signals.requested is not None)
            os.kill(os.getpid(), signal.SIGTERM)
            wait(lambda: watch.stop is not None)
        assert watch.ended
        with pytest.raises(SystemExit, match="143"):
            watch.heed()


def test_one_signal_for_one_request():
    """The launcher both signals and closes the pipe, or all processes are signalled: the training hears of it once."""
    reads, writes = os.pipe()
    with Watch(launcher=reads) as watch, watch.over(lambda: False), Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        wait(lambda: watch.stop is not None)
        os.close(writes)
        time.sleep(0.2)
        assert signals.requested == signal.SIGTERM
    os.close(reads)


def test_a_launcher_that_is_gone():
    reads, writes = os.pipe()
    with Watch(launcher=reads) as watch, watch.over(lambda: False), Signals() as signals:
        os.close(writes)
        wait(lambda: signals.requested is not None)
        assert watch.stop == signal.SIGTERM
        assert not watch.ended
    os.close(reads)


def test_everything_is_as_before():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    with Watch():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == -1
