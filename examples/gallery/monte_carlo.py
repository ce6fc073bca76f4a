"""Price an option by drawing its paths: ranks draw their own paths, and the price is the same bits on every mesh."""

import math

import numpy as np

import meshweave as mw

PATHS, DAYS = 20_000, 16
START, STRIKE, RATE, SPREAD = 100.0, 105.0, 0.03, 0.2


def price(key):
    """Return the mean of what the option pays at the end of a year, and its standard error."""
    noise = mw.random.normal(key, (PATHS, DAYS))
    steps = (RATE - SPREAD**2 / 2) / DAYS + SPREAD * math.sqrt(1 / DAYS) * noise
    pays = math.exp(-RATE) * mw.maximum(START * mw.exp(mw.sum(steps, axis=1)) - STRIKE, 0.0)
    return mw.constrain(pays, "[x]")


def exact():
    """Return the price by the formula of Black and Scholes (1973)."""
    far = (math.log(START / STRIKE) + RATE + SPREAD**2 / 2) / SPREAD
    below = [0.5 * (1 + math.erf(d / math.sqrt(2))) for d in (far, far - SPREAD)]
    return START * below[0] - STRIKE * math.exp(-RATE) * below[1]


def main():
    key = np.asarray(mw.random.key(0))
    drawn = {mesh: np.asarray(mw.jit(price, mesh=mesh)(key)) for mesh in ("x=1", "x=2", "x=3")}
    pays = drawn["x=1"]
    error = pays.std() / math.sqrt(PATHS)
    print(f"{pays.mean():.2f} +- {error:.2f}; by formula {exact():.2f}")
    print("equal bits on every mesh:", all(np.array_equal(pays, other) for other in drawn.values()))
    assert abs(pays.mean() - exact()) < 4 * error


if __name__ == "__main__":
    main()
