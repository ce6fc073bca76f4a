"""Rank the pages of a web; rows of links are dealt to the ranks in turn, as well-linked pages come first."""

import numpy as np

import meshweave as mw

PAGES, DAMPING = 400, 0.85


@mw.jit(mesh="x=4", in_layouts="[_*x, _]", out_layouts=("[_*x]", "[]"))
def pagerank(links):
    """Return the rank of each page, and how often all ranks were computed. links: [to, from], columns sum to 1."""

    def step(state):
        rank, _, rounds = state
        new = DAMPING * (links @ rank) + (1 - DAMPING) / PAGES
        return new, mw.sum(mw.abs(new - rank)), rounds + 1

    start = (mw.full((PAGES,), 1 / PAGES), mw.asarray(1.0), mw.asarray(0))
    rank, _, rounds = mw.while_loop(lambda state: state[1] > 1e-6, step, start)
    return rank, rounds


def web():
    """Return a random web: the first pages have the most links to them."""
    rng = np.random.default_rng(0)
    chance = 1 / np.sqrt(1 + np.arange(PAGES))
    links = (rng.random((PAGES, PAGES)) < 0.2 * chance[:, None]).astype(np.float32)
    links[rng.integers(PAGES, size=PAGES), np.arange(PAGES)] = 1  # nobody has none
    return links / links.sum(axis=0)


def main():
    links = web()
    rank, rounds = pagerank(links)
    rank = np.asarray(rank)
    print(f"after {int(rounds)} rounds the first pages are", *np.argsort(-rank)[:5])
    fixed = np.linalg.solve(np.eye(PAGES) - DAMPING * links, np.full(PAGES, (1 - DAMPING) / PAGES))
    assert np.allclose(rank, fixed, atol=1e-5)


if __name__ == "__main__":
    main()
