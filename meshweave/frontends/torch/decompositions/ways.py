"""Put several decompositions of one op together."""

from collections.abc import Callable

from torch import Tensor


def first_of(*ways: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Try one decomposition after the other."""

    def computed(*args: object, **options: object) -> Tensor:
        found = (way(*args, **options) for way in ways)
        return next((each for each in found if each is not NotImplemented), NotImplemented)

    return computed
