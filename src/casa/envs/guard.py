"""Check what environments return; an error names the environment, the step and the problem."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from casa.envs.types import Array, EnvError
from casa.errors import describe


class Guard(gym.Wrapper[Any, Any, Any, Any]):
    """Wrap one environment of a batch: exceptions and malformed results become an EnvError, infos are dropped.

    The step count matches the batch's: a seeded reset is step 0, and every later step or autoreset adds one.
    """

    def __init__(self, env: gym.Env[Any, Any], index: int) -> None:
        super().__init__(env)
        self.index = index
        self.steps = 0
        self.since: float | None = None  # when the call that is under way began
        space = env.observation_space
        self._shape, self._dtype = space.shape, np.dtype(space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the infos are dropped."""
        self.steps = 0 if seed is not None else self.steps + 1
        result = self._call("reset", lambda: self.env.reset(seed=seed, options=options))
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._error(f"reset must return (obs, info), got {_shown(result)}")
        return self._observation(result[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment; the infos are dropped."""
        self.steps += 1
        result = self._call("step", lambda: self.env.step(action))
        if not isinstance(result, tuple) or len(result) != 5:
            raise self._error(f"step must return (obs, reward, terminated, truncated, info), got {_shown(result)}")
        obs, reward, terminated, truncated, _ = result
        try:
            number = float(reward)
        except (TypeError, ValueError):
            raise self._error(f"reward must be a number, got {_shown(reward)}") from None
        return self._observation(obs), number, bool(terminated), bool(truncated), {}

    def close(self) -> None:
        """Close the environment. Errors are ignored: `build` has warned of them when it closed its trial."""
        with contextlib.suppress(Exception, SystemExit):
            self.env.close()

    def _call(self, name: str, function: Callable[[], Any]) -> Any:
        self.since = time.monotonic()
        try:
            return function()
        except EnvError:
            raise
        except (Exception, SystemExit) as error:  # sys.exit() in an environment must not end the training silently
            raise self._error(f"{name} raised {describe(error)}") from error
        finally:
            self.since = None

    def _observation(self, obs: Any) -> Any:
        array = obs if type(obs) is np.ndarray else np.asarray(obs)
        if array.shape != self._shape:
            raise self._error(f"observation has shape {array.shape}, its space says {self._shape}")
        if array.dtype != self._dtype and not np.can_cast(array.dtype, self._dtype, "same_kind"):
            raise self._error(f"observation has dtype {array.dtype}, its space says {self._dtype}")
        return obs

    def _error(self, what: str) -> EnvError:
        return EnvError(f"environment {self.index}, step {self.steps}: {what}")


def close_quietly(env: Any, name: str) -> None:
    """env.close(); an exception becomes a warning."""
    try:
        env.close()
    except (Exception, SystemExit) as error:
        warnings.warn(f"{name}: close raised {describe(error)}", RuntimeWarning, stacklevel=2)


def check_finite(values: Array, what: str, step: int, rows: Array | None = None) -> None:
    """Raise an EnvError unless all `values` [n, ...] are finite; `rows` [n] are the env indices, None: 0 .. n-1."""
    if values.dtype.kind != "f":
        return
    # Fast path: a finite sum means finite values, and it is cheaper than isfinite(). An overflow is checked below.
    with np.errstate(all="ignore"):
        if math.isfinite(float(values.sum())):
            return
    bad = ~np.isfinite(values)
    if not bad.any():
        return
    first = np.unravel_index(int(bad.argmax()), bad.shape)
    env = int(first[0] if rows is None else rows[first[0]])
    count = int(bad.reshape(len(bad), -1).any(axis=1).sum())
    others = f" (and in {count - 1} other environments)" if count > 1 else ""
    place = f" at index {tuple(int(i) for i in first[1:])}" if len(first) > 1 else ""
    raise EnvError(f"environment {env}, step {step}: {what} is {values[first]}{place}{others}")


def check_batch(obs: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str, step: int) -> Array:
    """`obs` as an array; EnvError unless it has `shape` [n, ...] and a dtype that can be cast to `dtype`."""
    array = np.asarray(obs)
    if array.shape != shape:
        raise EnvError(f"{name}, step {step}: observations have shape {array.shape}, the space says {shape}")
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise EnvError(f"{name}, step {step}: observations have dtype {array.dtype}, the space says {dtype}")
    return array


def _shown(value: object) -> str:
    """A short description of a value, for error messages."""
    if isinstance(value, tuple):
        return f"{len(value)} values"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
