"""A recording that nobody played: a ball that moves over a coloured field."""

import numpy as np

from casa.watch.film import Film
from casa.watch.record import Cast, Moment, Part


def made_moments(count=30, pi=True, q=True, frames=True, options=3, episodes=1):
    rng = np.random.default_rng(0)
    for episode in range(episodes):
        for t in range(count + 1):
            picture = np.full((42, 32, 3), (20, 60, 90), np.uint8)
            picture[t % 40 : t % 40 + 3, 10:13] = (250, 80, 40)
            frame = picture if frames else None
            if t == count:
                yield Moment(frame, None, None, None, None, (), 0.0, t / 10, episode, "terminated")
                return
            p = rng.dirichlet(np.ones(options))
            values = np.log(p) if t != 7 else -np.log(p)  # at step 7 they disagree
            v = np.sin(t / 5) + 3 * (t >= 12)
            chosen = (p if pi else None, values if q else None, 0.5 if pi else None)
            yield Moment(frame, float(v), *chosen, (t % options,), float(t == 20), t / 10, episode)


def continuous_film(parts=2, knots=11, count=30):
    """A film with continuous actions: densities that wander over the range from -2 to 2."""
    names = tuple(f"{x:.3g}" for x in np.linspace(-2, 2, knots))
    each = tuple(Part(str(d), names, True) for d in range(parts))
    film = Film(Cast("casa on Box-v0", "casa head", 7, each, 20.0, ""))
    x = np.linspace(-1, 1, knots)
    for t in range(count):
        middle = [np.sin(t / 5 + d) for d in range(parts)]
        q = np.concatenate([-((x - m) ** 2) for m in middle])
        action = tuple((m + 1) / 2 * (knots - 1) for m in middle)
        film.add(Moment(np.full((40, 40, 3), t, np.uint8), 1.0, np.exp(4 * q), q, 0.5, action, 0.0, 0.0, 0))
    return film


def made_cast(options=("left", "right", "fire"), title="casa on Made-v0", fps=20.0):
    return Cast(title, "casa head", 1000, (Part("", tuple(options)),), fps, "rewards (raw), discount 0.99")


def made_film(title="casa on Made-v0", names=("left", "right", "fire"), **options):
    film = Film(made_cast(names, title))
    for moment in made_moments(**options):
        film.add(moment)
    return film
