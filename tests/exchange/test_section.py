"""What one rank does in an exchange, as words: boxes by hand, and messages that both ends agree on."""

import numpy as np
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_layouts, meshes, shapes

from meshweave.device import CopyWords, ExchangeWords
from meshweave.exchange.device import device_section
from meshweave.exchange.section import Section, box_of
from meshweave.exchange.table import Piece, Table
from meshweave.layout import Layout, Mesh
from meshweave.plan.simulate import simulate
from meshweave.plan.steps import PlanStep


def sections(table, width):
    """The sections of all ranks, which send each other messages."""
    mesh = table.mesh
    group = mesh.group(mesh.names, 0)
    return [Section(table, rank, group, width, messages=True) for rank in range(mesh.nranks)]


def test_runs_are_joined_and_levels_dropped():
    assert box_of(Piece(0, (4, 1, 6), 2, (6, 6, 1), 0, (6, 9, 1)), 4) == (8, 0, 96, ())
    assert box_of(Piece(0, (4, 3, 2), 0, (24, 4, 1), 0, (6, 2, 1)), 4) == (
        0, 0, 8, ((3, 16, 8), (4, 96, 24)),
    )  # fmt: skip
    # Levels that follow on each other on both sides are one.
    assert box_of(Piece(0, (4, 3), 0, (6, 2), 0, (9, 3)), 2).levels == ((12, 4, 6),)
    # A transposing copy: the target's smallest step, then the source's.
    box = box_of(Piece(0, (5, 7, 3), 0, (21, 3, 1), 0, (1, 5, 35)), 4)
    assert [level[0] for level in box.levels] == [5, 3, 7]


def test_messages_that_lie_back_to_back_are_not_packed():
    def mail(source, target, shape):
        table = Table(Layout.parse(source), Layout.parse(target), Mesh.parse("x=4"), shape)
        return sections(table, 4)[1].mail

    gathered = mail("[x, _]", "[_, _]", (8, 6))
    assert (gathered.packs, gathered.unpacks, gathered.staging) == (False, False, 0)
    assert gathered.rows == ((48, 0, 48, 0), (0, 0, 0, 0), (48, 0, 48, 96), (48, 0, 48, 144))
    turned = mail("[x, _]", "[_, x]", (8, 8))
    assert (turned.packs, turned.unpacks, turned.staging) == (True, False, 48 + 16)


def test_blocks_that_never_meet_make_many_pieces():
    ends = Layout.parse("[_*x*3]"), Layout.parse("[_*x*7]")
    pieces = Table(*ends, Mesh.parse("x=4"), (200_000,)).receives(1)
    assert sum(piece.size for piece in pieces) == 50_001  # its part: 7 * 7,143
    assert len(pieces) > 5_000


@settings(max_examples=examples(100))
@given(meshes(), st.data(), st.integers(0, 3), st.sampled_from([1, 2, 4]))
def test_what_devices_pack_and_unpack_is_the_exchange(mesh, data, ndim, width):
    shape = data.draw(shapes(ndim))
    source, target = (data.draw(any_layouts(mesh, shape, kinds=())) for _ in range(2))
    every = sections(Table(source, target, mesh, shape), width)
    local = source.allocation_shape(mesh, shape)
    size, made = int(np.prod(local)), target.allocation_shape(mesh, shape)
    kinds = {1: np.uint8, 2: np.uint16, 4: np.uint32}
    given_ = [np.arange(size) + rank * size + 1 for rank in range(mesh.nranks)]
    given_ = [(v % 250).astype(kinds[width]).reshape(local) for v in given_]
    got = exchanged(
        every, [v.reshape(-1).view(np.uint8) for v in given_], int(np.prod(made)) * width
    )
    step = PlanStep("exchange", mesh.names, source, target, 0)
    numbers = [np.arange(size).reshape(local) + rank * size for rank in range(mesh.nranks)]
    whole = np.concatenate([v.reshape(-1) for v in given_])
    for rank, ids in enumerate(simulate([step], numbers, mesh, shape).shards):
        known = (ids >= 0) & (ids < len(whole))
        values = got[rank].view(kinds[width]).reshape(made)
        assert np.array_equal(values[known], whole[ids[known]])


def exchanged(every, sources, nbytes):
    """Do an exchange as host code and kernels of gpus do: from the words alone."""
    devices = [device_section(section) for section in every]
    words = [device.words(0) for device in devices]
    targets = [np.zeros(nbytes, np.uint8) for _ in every]
    boxes = []
    for rank, (device, word) in enumerate(zip(devices, words, strict=True)):
        staging = np.zeros(every[rank].mail.staging, np.uint8)
        out = sources[rank] if word[ExchangeWords.OUTBOX] < 0 else staging
        into = (
            targets[rank] if word[ExchangeWords.INBOX] < 0 else staging[word[ExchangeWords.INBOX] :]
        )
        boxes.append((out, into))
        copy(device.rows, word, ExchangeWords.PACKED, sources[rank], out)
        copy(device.rows, word, ExchangeWords.KEPT, sources[rank], targets[rank])
    mail = [word[ExchangeWords.MEMBERS :].reshape(-1, 4).tolist() for word in words]
    for rank, rows in enumerate(mail):
        for member, (sent, begin, _, _) in enumerate(rows):
            _, _, wanted, at = mail[member][rank]
            assert sent == wanted
            boxes[member][1][at : at + sent] = boxes[rank][0][begin : begin + sent]
    for rank, (device, word) in enumerate(zip(devices, words, strict=True)):
        copy(device.rows, word, ExchangeWords.UNPACKED, boxes[rank][1], targets[rank])
    return targets


def copy(rows, word, which, source, target):
    """Do one list of copies, a unit at a time."""
    start, count, largest = word[which : which + 3].tolist()
    unit, first = int(word[ExchangeWords.UNIT]), start // (8 * max(1, rows.shape[1]))
    for row in rows[first : first + count].tolist():
        begin, end, nbytes, run, *levels = row
        assert nbytes <= largest and nbytes % unit == 0 and len(row[:4]) == CopyWords.LEVELS
        for index in range(nbytes // unit):
            rest, inside = divmod(index, run // unit)
            s, t = begin + inside * unit, end + inside * unit
            for times, step, stride in zip(levels[::3], levels[1::3], levels[2::3]):
                rest, digit = divmod(rest, times)
                s, t = s + digit * step, t + digit * stride
            target[t : t + unit] = source[s : s + unit]
