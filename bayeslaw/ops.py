"""The kernels as pytensor operations with gradients, for PyMC's graph on the numba backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numba import njit
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key

from bayeslaw import coordinates, densities, kernels
from bayeslaw.schema import STUDENT_NU

N_COLUMNS = len(kernels.COLUMNS)
CACHE_VERSION = int.from_bytes(
    sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in (coordinates, densities, kernels))).digest()[
        :7
    ]
)
"""Part of the compile cache's key: a changed kernel is compiled anew."""


class _Kernel(Op):  # type: ignore[misc]  # pytensor is untyped here
    """An operation that calls one compiled function of all its inputs."""

    __props__: tuple[str, ...] = ()
    function: Callable[..., Any]
    outputs: tuple[Any, ...]

    def make_node(self, *inputs: Any) -> Apply:
        return Apply(self, [pt.as_tensor(value) for value in inputs], [kind() for kind in self.outputs])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        results = self.function(*inputs)
        for storage, result in zip(output_storage, results if len(self.outputs) > 1 else (results,), strict=True):
            storage[0] = np.asarray(result)


@njit
def _natural(z: Any, packed: Any, cores: Any, reference: Any) -> Any:
    xi = coordinates.unwhitened(z, packed)
    theta = np.empty_like(xi)
    volume = coordinates.natural(xi, cores, reference, theta)
    return theta, np.asarray(volume)


@njit
def _natural_pullback(z: Any, packed: Any, cores: Any, reference: Any, gradient: Any, gvolume: Any) -> Any:
    xi = coordinates.unwhitened(z, packed)
    gradient = coordinates.natural_pullback(xi, cores, reference, gradient, gvolume.item())
    return coordinates.unwhitened_pullback(gradient, packed)


@njit
def _gaussian(z: Any, v: Any, groups: Any, sizes: Any, tau: Any, gz: Any, gv: Any, gtau: Any) -> Any:
    return densities.gaussian(z, v, groups, sizes, tau, gz, gv, gtau)


@njit
def _student(z: Any, v: Any, groups: Any, sizes: Any, tau: Any, gz: Any, gv: Any, gtau: Any) -> Any:
    return densities.student(z, v, float(STUDENT_NU), gz, gv)


@njit
def _student_grouped(z: Any, v: Any, groups: Any, sizes: Any, tau: Any, gz: Any, gv: Any, gtau: Any) -> Any:
    return densities.student_grouped(z, v, float(STUDENT_NU), groups[0], tau[0], gz, gv, gtau)


ERRORS = {"gaussian": _gaussian, "student": _student, "student_grouped": _student_grouped}
"""Error densities, each compiled only where it is used."""


@cache
def _log_density(errors: str) -> Callable[..., Any]:
    density = ERRORS[errors]

    @njit
    def log_density(theta: Any, log_g: Any, packed: Any, kinds: Any, cores: Any, scales: Any) -> Any:
        p, at = len(theta), len(theta) * (len(theta) + 1)
        runs = packed[at + 2 * p :].reshape(-1, N_COLUMNS)
        gtheta, glog_g = np.empty(p), np.zeros(len(log_g))
        total = densities.log_prior(theta, packed[at : at + p], packed[at + p : at + 2 * p], kinds, gtheta)
        z, own, v, partial, groups, sizes, tau = kernels.residuals(theta, log_g, runs, cores, scales)
        gz, gv, gtau = np.empty(len(z)), np.empty(len(z)), np.zeros(len(tau))
        total += density(z, v, groups, sizes, tau, gz, gv, gtau)
        kernels.collect(gz, gv, gtau, own, partial, tau, runs, cores, scales, gtheta, glog_g)
        return np.asarray(total), gtheta, glog_g

    return log_density  # type: ignore[no-any-return]


class Natural(_Kernel):
    """Natural coordinates of whitened local ones, log |d theta / d xi|; inputs z, packed data, cores, reference."""

    function = staticmethod(_natural)
    outputs = (pt.dvector, pt.dscalar)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Back through `NaturalPullback`."""
        z, *data = inputs
        theta, volume = (
            zero if isinstance(given.type, DisconnectedType) else given
            for given, zero in zip(cotangents, (pt.zeros_like(z), pt.constant(0.0)), strict=True)
        )
        return [NaturalPullback()(z, *data, theta, volume), *(DisconnectedType()() for _ in data)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Only z has a gradient."""
        return [[index == 0] * 2 for index in range(len(node.inputs))]


class NaturalPullback(_Kernel):
    """Gradient by z; inputs as `Natural`, then the gradients by theta and by the log volume."""

    function = staticmethod(_natural_pullback)
    outputs = (pt.dvector,)


class LogDensity(_Kernel):
    """Log prior plus log likelihood, with its gradients by theta and log g.

    Inputs theta, log g, the packed data, and kinds, cores and scales as the kernels take them.

    Parameters
    ----------
    errors : str
        One of `ERRORS`.
    """

    __props__ = ("errors",)
    outputs = (pt.dscalar, pt.dvector, pt.dvector)

    def __init__(self, errors: str) -> None:
        self.errors = errors
        self.function = _log_density(errors)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """The gradients are outputs: nothing is computed twice."""
        _, gtheta, glog_g = outputs
        data = [DisconnectedType()() for _ in inputs[2:]]
        return [cotangents[0] * gtheta, cotangents[0] * glog_g, *data]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Only the log density is derived, by theta and log g."""
        return [[index < 2, False, False] for index in range(len(node.inputs))]


def _register(kernel: type[_Kernel]) -> None:
    @register_funcify_default_op_cache_key(kernel)  # type: ignore[untyped-decorator]
    def funcify(op: _Kernel, node: Apply | None = None, **kwargs: Any) -> tuple[Callable[..., Any], int]:
        return op.function, CACHE_VERSION


for _kernel in (Natural, NaturalPullback, LogDensity):
    _register(_kernel)
