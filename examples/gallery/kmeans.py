"""Cluster points with k-means; points lie over four ranks, and only sums of clusters are moved."""

import numpy as np

import meshweave as mw

CLUSTERS, ROUNDS = 3, 50


@mw.jit(mesh="x=4", in_layouts=("[x, _]", "[_, _]"), out_layouts=("[_, _]", "[x]", "[]"))
def kmeans(points, centres):
    """Return the centres at which no point changes its cluster, the cluster of each point, and the rounds."""

    def nearest(centres):
        between = points[:, None, :] - centres[None, :, :]
        return mw.argmin(mw.sum(between * between, axis=-1), axis=-1)

    def moved(state):
        _, centres, round_ = state
        member = mw.nn.one_hot(nearest(centres), CLUSTERS)  # [points, clusters]
        sizes = mw.maximum(mw.sum(member, axis=0), 1.0)
        return centres, member.T @ points / sizes[:, None], round_ + 1

    def unsettled(state):
        before, now, round_ = state
        return mw.logical_and(mw.any(before != now), round_ < ROUNDS)

    start = moved((centres, centres, mw.asarray(0)))
    _, centres, rounds = mw.while_loop(unsettled, moved, start)
    return centres, nearest(centres), rounds


def main():
    rng = np.random.default_rng(0)
    wanted = np.array([[0, 0], [4, 1], [1, 5]], np.float32)
    points = (wanted[rng.integers(CLUSTERS, size=1000)] + rng.normal(0, 0.5, (1000, 2))).astype("f")
    centres, cluster, rounds = kmeans(points, points[:CLUSTERS])
    found = sorted(np.asarray(centres).tolist())
    print(
        f"{CLUSTERS} centres after {int(rounds)} rounds:",
        *(f"({x:.1f}, {y:.1f})" for x, y in found),
    )
    print("points in each:", *sorted(np.bincount(np.asarray(cluster)).tolist()))
    for centre in wanted:
        assert np.abs(np.asarray(centres) - centre).sum(axis=1).min() < 0.2


if __name__ == "__main__":
    main()
