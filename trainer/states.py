"""Weights and optimiser state by name: what a checkpoint holds, and whether it is that of the model at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from bayeslaw.errors import CheckpointError
from trainer.checks import some


def optimizer_tensors(state_dict: Mapping[str, Any], names: list[str]) -> dict[str, Tensor]:
    """State of an optimiser as ``<key>/<parameter name>`` tensors: a reader may group its parameters otherwise.

    Rates and the other settings of the groups are left out: the config has them.

    Parameters
    ----------
    state_dict : mapping
        ``optimizer.state_dict()``.
    names : list of str
        Name of each parameter in the order of the groups, which need not be that of the model.
    """
    _require_named(state_dict["param_groups"], names)
    tensors = {}
    for index, entries in state_dict["state"].items():
        for key, value in entries.items():
            assert isinstance(value, Tensor), f"{key} of {names[index]} is no tensor"
            assert "/" not in key, f"{key} cannot be told from a parameter's name"
            tensors[f"{key}/{names[index]}"] = value
    return tensors


def optimizer_state(
    tensors: Mapping[str, Tensor], param_groups: list[dict[str, Any]], names: list[str]
) -> dict[str, Any]:
    """What `optimizer_tensors` took, for ``optimizer.load_state_dict``.

    Parameters
    ----------
    tensors : mapping
        Tensors as `optimizer_tensors` names them; those of parameters that the optimiser lacks are left.
    param_groups : list of dict
        ``optimizer.state_dict()["param_groups"]`` of the optimiser to be loaded: its rates and settings stay.
    names : list of str
        Name of each of its parameters in the order of its groups.
    """
    _require_named(param_groups, names)
    position = {name: index for index, name in enumerate(names)}
    state: dict[int, dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        key, _, name = full.partition("/")
        if name in position:
            state.setdefault(position[name], {})[key] = tensor
    return {"state": state, "param_groups": param_groups}


def require_same(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other names or shapes than expected.

    Raises
    ------
    CheckpointError
        Says what is missing, unexpected, or of another shape.
    """
    differences = {
        "missing": [name for name in expected if name not in tensors],
        "unexpected": [name for name in tensors if name not in expected],
        "other shapes": [
            f"{name} {list(tensors[name].shape)} instead of {list(tensor.shape)}"
            for name, tensor in expected.items()
            if name in tensors and tensors[name].shape != tensor.shape
        ],
    }
    found = [f"{kind}: {some(those)}" for kind, those in differences.items() if those]
    if found:
        raise CheckpointError(
            "a checkpoint of another architecture; " + "; ".join(found),
            do="use the config that the checkpoint was made with, or another checkpoint",
        )


def _require_named(param_groups: Iterable[Mapping[str, Any]], names: list[str]) -> None:
    count = sum(len(group["params"]) for group in param_groups)
    assert len(names) == len(set(names)) == count, f"{len(set(names))} different names for {count} parameters"
