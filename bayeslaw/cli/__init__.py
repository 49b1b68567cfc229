"""The command line: one command, one verb a file, each loaded when it is asked for."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from bayeslaw.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, BayeslawError
from bayeslaw.texts import printable_lines
from bayeslaw.version import __version__

VERBS = {
    "demo": "Train, track, fit, allocate and report, end to end, on this machine.",
    "data": "Tokenise and pack documents, and check packed shards.",
    "train": "Train one looped language model.",
    "sweep": "Plan an iso-FLOP grid of runs, train it here or on a cluster, and see to it.",
    "generate": "Let a trained model go on with a text.",
    "eval": "Score trained models on tasks, and keep the scores with their runs.",
    "runs": "List, import and export the runs of a source; deliver journals to MLflow and hold them against it.",
    "server": "Serve runs to many trainers: an MLflow server with safe settings.",
    "fit": "Sample the posterior of the law from the runs of a source.",
    "compare": "Hold laws, recurrence maps and recipes side by side.",
    "regimes": "Say on which tasks loops lose to the plain model, where they keep up, and what cannot be told.",
    "calibrate": "Try a model's posterior on data simulated from the model itself.",
    "check": "Find what is wrong with a fit, and what its answer hangs on.",
    "allocate": "Recommend width, tokens, recurrences and recipe for a training budget, or for a loss.",
    "predict": "Forecast the loss of one configuration.",
    "equivalent": "Say which non-looped model is as good as a looped one, and what either costs.",
    "design": "Propose the runs to train next for a purse of compute.",
    "report": "Write the offline HTML report of a fit.",
}


def build_app() -> App:
    """The command with all its verbs, none of them imported yet."""
    app = App(
        name="bayeslaw",
        help="Measure what one recurrence of a looped language model is worth, and decide with it.",
        version=__version__,
        help_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    for verb, text in VERBS.items():
        app.command(f"bayeslaw.cli.{verb}:app", name=verb, help=text)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code: 0 ok, 1 failure, 2 usage, 3 diagnostics, 4 no runs, 130 interrupted."""
    code = run(sys.argv[1:] if arguments is None else arguments)
    if "triton" not in sys.modules:  # it takes objects that are never collected for leaks, and says so at length
        gc.freeze()  # nothing needs collecting any more: after a compilation that would take a second
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    try:
        code = build_app()(arguments, exit_on_error=False, print_error=True, result_action="return_value")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output (head, less) has had enough: that is no failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except CycloptsError:
        return EXIT_USAGE  # the message is already on stderr
    except BayeslawError as error:
        print(printable_lines(f"error: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; finished runs, simulations and tasks are kept", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        print(f"error: {error}\n  next: free some space, or write elsewhere", file=sys.stderr)
        return EXIT_FAILURE
    return code if isinstance(code, int) else EXIT_OK
