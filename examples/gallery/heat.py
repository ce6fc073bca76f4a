"""Let heat spread over a plate with Jacobi's method; it lies on a mesh of 2 x 2 ranks, which swap edges."""

import numpy as np

import meshweave as mw

SIZE, STEPS = 64, 400
SHADES = " .:-=+*#%@"


@mw.jit(mesh="x=2, y=2", in_layouts="[x, y]", out_layouts="[x, y]")
def spread(plate):
    """Replace each inner element by the mean of its four neighbours, STEPS times; the border stays."""

    def step(now, _):
        inner = (now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:]) / 4
        return now.at[1:-1, 1:-1].set(inner), None

    return mw.scan(step, plate, length=STEPS)[0]


def spread_numpy(plate):
    for _ in range(STEPS):
        inner = (plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]) / 4
        plate = plate.copy()
        plate[1:-1, 1:-1] = inner
    return plate


def main():
    plate = np.zeros((SIZE, SIZE), np.float32)
    plate[0], plate[:, 0] = 1, 0.5
    with mw.expect(collectives={"all_gather": 0}):  # edges alone are moved
        warm = np.asarray(spread(plate))
    for row in warm[::8, ::2]:
        print("".join(SHADES[int(9 * value)] for value in row))
    assert np.allclose(warm, spread_numpy(plate), atol=1e-5)


if __name__ == "__main__":
    main()
