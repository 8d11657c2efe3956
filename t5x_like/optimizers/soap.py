"""SOAP (Vyas et al. 2024, arXiv:2409.11321): Adam in the eigenbasis of Shampoo's preconditioner."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.optimizers.base import check_rates


class Side(NamedTuple):
    """The preconditioner of one dimension of a matrix.

    Attributes:
      moment: Moving average of the products of the gradient with itself over the other dimension.
      basis: Orthogonal matrix whose columns are close to its eigenvectors, in descending order of the eigenvalues.
    """

    moment: Float[Array, "size size"]
    basis: Float[Array, "size size"]


class State(NamedTuple):
    """State of `soap` for one parameter.

    Attributes:
      count: Number of updates, without the one that computed the first basis.
      mu: First moment.
      nu: Second moment, in the basis.
      sides: The preconditioners of the two dimensions of a matrix; None for a dimension that is too large.
    """

    count: Int[Array, ""]
    mu: Float[Array, "..."]
    nu: Float[Array, "..."]
    sides: tuple[Side | None, ...]


def soap(
    *,
    b1: float = 0.95,
    b2: float = 0.95,
    eps: float = 1e-8,
    precondition_every: int = 10,
    max_size: int = 10_000,
) -> optax.GradientTransformationExtraArgs:
    """Returns SOAP for matrices and Adam for vectors, for `from_optax`.

    With a gradient G, L and R are moving averages of G Gᵀ and Gᵀ G, and Q_L and Q_R their eigenvectors. Adam's second
    moment is the one of Q_Lᵀ G Q_R; its direction is computed in this basis and rotated back. The first update is zero:
    it computes the eigenvectors, in step 0 or, if that is skipped, when the next ones are due. Every
    `precondition_every` steps, one step of power iteration and a QR decomposition update them, after the parameters.

    Args:
      b1: Decay rate of the first moment.
      b2: Decay rate of the second moment, and of L and R.
      eps: Added to the root of the second moment.
      precondition_every: Number of steps between two updates of the eigenvectors.
      max_size: Largest size of a dimension with a preconditioner. Others, such as a vocabulary, keep their basis.

    Raises:
      UserError: `precondition_every` is not positive, or `b1` or `b2` is not in [0, 1).
    """
    check_rates("soap", b1=b1, b2=b2)
    if precondition_every < 1:
        raise UserError(f"precondition_every={precondition_every} of soap is not positive. Give such as 10.")

    def init(params):
        return {name: _initial(array, max_size) for name, array in params.items()}

    def update(updates, state, params=None, *, step, **_):
        found, new_state = {}, {}
        for name, gradient in updates.items():
            found[name], new_state[name] = one(gradient, state[name], step)
        return found, new_state

    def one(gradient, state, step):
        has_basis = state.count > 0
        number = jnp.maximum(state.count, 1).astype(jnp.float32)
        mu = b1 * state.mu + (1 - b1) * gradient
        nu = b2 * state.nu + (1 - b2) * _rotate(gradient, state.sides) ** 2
        correction = jnp.sqrt(1 - b2**number) / (1 - b1**number)
        direction = _rotate_back(_rotate(mu, state.sides) / (jnp.sqrt(nu) + eps), state.sides) * correction
        mu, nu, direction = (jnp.where(has_basis, x, 0.0) for x in (mu, nu, direction))
        is_due = step % precondition_every == 0  # the same for all layers, so that others compute no basis
        count = state.count + (has_basis | is_due)
        if not state.sides:
            return -direction, State(count, mu, nu, ())
        products = _product(gradient, gradient.T), _product(gradient.T, gradient)
        moments = [
            None if side is None else side.moment + (1 - b2) * (product - side.moment)
            for side, product in zip(state.sides, products, strict=True)
        ]
        bases = [None if side is None else side.basis for side in state.sides]
        due = functools.partial(_new_bases, moments, has_basis)
        bases, nu = jax.lax.cond(is_due, due, lambda bases, nu: (bases, nu), bases, nu)
        pairs = zip(moments, bases, strict=True)
        sides = tuple(None if moment is None else Side(moment, basis) for moment, basis in pairs)
        return -direction, State(count, mu, nu, sides)

    return optax.GradientTransformationExtraArgs(init, update)


def _initial(array: Array, max_size: int) -> State:
    def side(size):
        return Side(jnp.zeros((size, size), jnp.float32), jnp.eye(size)) if size <= max_size else None

    sides = tuple(map(side, array.shape)) if array.ndim == 2 else ()
    zeros = jnp.zeros(array.shape, jnp.float32)
    return State(jnp.zeros((), jnp.int32), zeros, zeros, sides if any(each is not None for each in sides) else ())


def _product(one: Array, other: Array) -> Array:
    """Returns a product in float32, which accelerators compute with fewer bits by default."""
    return jnp.matmul(one, other, precision=jax.lax.Precision.HIGHEST)


def _rotate(x: Array, sides: tuple[Side | None, ...]) -> Array:
    """Returns a matrix in the basis of the sides; vectors are returned as they are."""
    if not sides:
        return x
    left, right = sides
    x = x if left is None else _product(left.basis.T, x)
    return x if right is None else _product(x, right.basis)


def _rotate_back(x: Array, sides: tuple[Side | None, ...]) -> Array:
    if not sides:
        return x
    left, right = sides
    x = x if left is None else _product(left.basis, x)
    return x if right is None else _product(x, right.basis.T)


def _new_bases(moments: list, has_basis: Array, bases: list, nu: Array) -> tuple[list, Array]:
    """Returns the eigenvectors of the moments, and the second moment in their order.

    The first ones are exact. Later ones are a step of power iteration from those before, sorted by eigenvalues.
    """
    found = []
    for axis, (moment, basis) in enumerate(zip(moments, bases, strict=True)):
        if basis is None:
            found.append(None)
            continue
        order = jnp.argsort(jnp.sum(basis * _product(moment, basis), axis=0), descending=True)
        nu = jnp.where(has_basis, jnp.take(nu, order, axis=axis), nu)
        found.append(_basis(has_basis, _orthonormal(_product(moment, basis[:, order])), moment))
    return found, nu


def _basis(has_basis: Array, iterated: Array, moment: Array) -> Array:
    """Returns `iterated`, or without a basis the eigenvectors of `moment` by falling eigenvalues.

    A loop, which ends at once if all layers have a basis. With several layers, `jax.lax.cond` computes both branches.
    """
    return jax.lax.while_loop(
        lambda carry: ~carry[0], lambda _: (jnp.ones_like(has_basis), _eigenvectors(moment)), (has_basis, iterated)
    )[1]


def _by_platform(decompose: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Returns a decomposition of a matrix that CPUs compute for one layer after another.

    There, several decompositions of several layers each, which a program computes at a time, may take all threads and
    wait for each other forever (JAX 0.10).
    """
    one_by_one = jax.custom_batching.sequential_vmap(decompose)
    return lambda matrix: jax.lax.platform_dependent(matrix, cpu=one_by_one, default=decompose)


_orthonormal = _by_platform(lambda matrix: jnp.linalg.qr(matrix)[0])
_eigenvectors = _by_platform(lambda matrix: jnp.linalg.eigh(matrix)[1][:, ::-1])
