"""``bayeslaw train``: train one looped language model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.cli.output import note, own, print_json, print_table
from bayeslaw.errors import EXIT_FAILURE, EXIT_OK, UsageError
from bayeslaw.journal import FILE_NAME

app = App(name="train", help="Train one looped language model.")


@app.default
def train(
    *,
    d_model: int | None = None,
    width_scale: float | None = None,
    recurrences: int = 1,
    prelude_layers: int = 1,
    shared_layers: int = 4,
    coda_layers: int = 1,
    head_size: int = 16,
    budget: float | None = None,
    tokens: int | None = None,
    seq_len: int = 64,
    batch_tokens: int = 512,
    corpus: str = "stdlib",
    validation_tokens: int = 65_536,
    validate_every: int = 0,
    recipe: str = "baseline",
    backprop_recurrences: int | None = None,
    seed: int = 0,
    study: str = "bayeslaw",
    out: Path = Path("bayeslaw-out"),
    tracking_uri: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Train one looped language model and write its journal; deliver it to MLflow when a store is named.

    Parameters
    ----------
    d_model
        Width, a multiple of the head size. Give this or --width-scale.
    width_scale
        Width in units of 64.
    recurrences
        How often the shared block runs.
    prelude_layers
        Layers before the shared block.
    shared_layers
        Layers of the shared block.
    coda_layers
        Layers after the shared block.
    head_size
        Size of an attention head.
    budget
        Training FLOPs. Give this or --tokens.
    tokens
        Training tokens, a multiple of --batch-tokens.
    seq_len
        Context in tokens.
    batch_tokens
        Tokens of an optimiser step.
    corpus
        stdlib, or the path of a text file or a folder of them; a token is a byte.
    validation_tokens
        Held-out tokens of the validation loss.
    validate_every
        Steps between validations; 0 validates at the end only.
    recipe
        Name of the recipe in the run table.
    backprop_recurrences
        The last recurrences that gradients pass through; all by default.
    seed
        Seed of starting values and data order.
    study
        MLflow experiment.
    out
        Output folder.
    tracking_uri
        MLflow store; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db. Where mlflow is missing, or the store away,
        the journal is kept for `bayeslaw runs sync`.
    as_json
        Print one JSON object.
    """
    trainer_loop, config_module, tracking_module = map(own, ("trainer.loop", "trainer.config", "trainer.tracking"))
    config = config_module.TrainConfig(
        d_model=_width(d_model, width_scale),
        recurrences=recurrences,
        prelude_layers=prelude_layers,
        shared_layers=shared_layers,
        coda_layers=coda_layers,
        head_size=head_size,
        budget=budget,
        tokens=tokens,
        seq_len=seq_len,
        batch_tokens=batch_tokens,
        corpus=corpus,
        validation_tokens=validation_tokens,
        validate_every=validate_every,
        recipe=recipe,
        backprop_recurrences=backprop_recurrences,
        seed=seed,
    )
    tracking = tracking_module.Tracking(tracking_uri)
    result = trainer_loop.train(config, out, study=study, tracking=tracking)
    if not result.trained:
        note(f"trained before with this config; its journal is in {result.run_dir}")
        tracking.deliver(result.run_dir / FILE_NAME)
    _print(result.row, result.run_dir, as_json)
    if result.state == "finished":
        return EXIT_OK
    note(f"the run {result.state}: its loss is no number any more; try a smaller budget, width or batch")
    return EXIT_FAILURE


def _width(d_model: int | None, width_scale: float | None) -> int:
    if (d_model is None) == (width_scale is None):
        raise UsageError(f"--d-model {d_model} and --width-scale {width_scale}", allowed="one of the two")
    if d_model is not None:
        return d_model
    assert width_scale is not None
    width = WIDTH_UNIT * width_scale
    if width != round(width) or width < 1:
        raise UsageError(
            f"--width-scale {width_scale:g} is a width of {width:g}",
            allowed=f"a whole width, in steps of 1/{WIDTH_UNIT}",
            do=f"the nearest is --d-model {max(1, round(width))}",
        )
    return int(width)


def _print(row: dict[str, Any], run_dir: Path, as_json: bool) -> None:
    if as_json:
        print_json({"run": row, "run_dir": str(run_dir)})
        return
    loss = f"{row['loss']:.4f} +- {row.get('loss_se', float('nan')):.4f} nats/token" if "loss" in row else "-"
    lines = {
        "run": row["run_id"],
        "state": row["state"],
        "loss": loss,
        "parameters": f"{row['n_unique']:,}",
        "tokens": f"{row.get('tokens', 0):,}",
        "FLOPs": f"{row.get('flops', 0.0):.3g}",
        "tokens/s": f"{row.get('tokens_per_second', 0.0):,.0f}",
        "written to": str(run_dir),
    }
    print_table(("what", "value"), lines.items())
