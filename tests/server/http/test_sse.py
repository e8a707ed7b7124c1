"""Events are cut where they end, whatever the line ends and wherever the bytes are split."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thunder_server.sse import EventSplitter, data_of

ENDS = ("\n\n", "\r\n\r\n", "\r\r", "\n\r\n", "\r\n\n")
TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], bytes]:
    events = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["data: ", "data:", ": ", "event: x\ndata: ", ""]),
                TEXT,
                st.sampled_from(ENDS),
            )
        )
    )
    # An empty line between events belongs to whichever side; leave such out, as engines do.
    complete = [(field + text + end).encode() for field, text, end in events if field or text]
    return complete, draw(TEXT).encode()


@given(streams(), st.lists(st.integers(min_value=1, max_value=9), min_size=1))
def test_events_come_out_as_they_went_in_at_any_split(
    stream: tuple[list[bytes], bytes], sizes: list[int]
) -> None:
    events, tail = stream
    whole = b"".join(events) + tail
    splitter, out, position, step = EventSplitter(), [], 0, 0
    while position < len(whole):
        size = sizes[step % len(sizes)]
        out += splitter.feed(whole[position : position + size])
        position, step = position + size, step + 1
    assert b"".join(out) + splitter.rest() == whole
    # Only at the very end may an event be held back: a lone \r could be half of \r\n.
    assert out == events or (out == events[:-1] and not tail)
    assert splitter.rest() == b""


def test_data_of_several_lines() -> None:
    assert data_of(b"id: 1\ndata: a\ndata:b\ndata:  c\n\n") == b"a\nb\n c"
    assert data_of(b": ping\n\n") is None
    assert data_of(b"data:\n\n") == b""
