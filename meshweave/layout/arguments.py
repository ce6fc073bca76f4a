"""Read what users give as a layout."""

from collections.abc import Iterable

from meshweave.errors import UsageError
from meshweave.layout.interchange import from_spec
from meshweave.layout.layout import Layout
from meshweave.layout.spec import is_spec


def as_layout(layout: object, ndim: int) -> Layout:
    """Return the layout that an argument means, for a tensor of `ndim` dims: text, a Layout, or a PartitionSpec.

    Raises UsageError for anything else, LayoutError for text that cannot be read.
    """
    if isinstance(layout, Layout):
        return layout
    if isinstance(layout, str):
        return Layout.parse(layout)
    if isinstance(layout, Iterable) and (isinstance(layout, tuple) or is_spec(layout)):
        return from_spec(layout, ndim)
    raise UsageError(
        f'layout: text such as "[x, _]", a Layout or a PartitionSpec is needed, got {layout!r:.60}'
    )
