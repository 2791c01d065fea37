"""The load generator: its requests are calls that the endpoint takes, and it counts what isn't accepted."""

from __future__ import annotations

import json

import pytest

from app.api.envelope import parse_tool_call
from app.api.json_body import parse_json
from benchmarks.measuring.load import HEAD, PATH, Measured, Target, open_connections, split_answer


def target(taken: int = 0) -> Target:
    heads = [HEAD.format(path=PATH, host="127.0.0.1", port=1, token=token).encode() for token in ("one", "two")]
    return Target(heads, "cust-1", 10, taken)


def sent(request: bytes) -> tuple[bytes, bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    return head, body


def test_a_request_is_a_refund_with_its_own_length() -> None:
    head, body = sent(target().request())
    assert f"content-length: {len(body)}".encode() in head
    call = parse_tool_call(parse_json(body))
    assert (call.tool, call.on_behalf_of_id, call.segment) == ("refund", "cust-1", "standard")
    assert json.loads(body)["arguments"] == {"order_id": "S-00000000", "amount": 0.01, "currency": "EUR", "cause": "damaged"}


def test_no_refund_is_sent_twice_and_a_session_has_one_agent() -> None:
    each = target()
    requests = [sent(each.request()) for _ in range(40)]
    documents = [json.loads(body) for _, body in requests]
    assert len({(one["arguments"]["order_id"], one["arguments"]["amount"]) for one in documents}) == 40
    assert len({one["call_id"] for one in documents}) == 40
    keys = {(one["session_id"], b"Bearer one" in head) for one, (head, _) in zip(documents, requests, strict=True)}
    assert len(keys) == len({one["session_id"] for one in documents}) == 5


def test_an_answer_is_split_when_all_of_it_has_come() -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nx: y\r\n\r\nbody"
    assert [split_answer(bytearray(whole[:size])) for size in (10, len(whole) - 1)] == [None, None]
    assert split_answer(bytearray(whole)) == (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nx: y", b"body")


@pytest.mark.parametrize(
    ("head", "body", "refused"),
    [
        (b"HTTP/1.1 200 OK", b'{"decision":"accepted"}', 0),
        (b"HTTP/1.1 200 OK", b'{"decision":"denied"}', 1),
        (b"HTTP/1.1 503 Service Unavailable", b'{"decision":"accepted"}', 1),
    ],
)
def test_what_is_not_accepted_is_counted(head: bytes, body: bytes, refused: int) -> None:
    measured = Measured()
    measured.note(0, head, body)
    assert (measured.refused, len(measured.samples), len(measured.ended)) == (refused, refused, 1)


def test_it_goes_nowhere_but_to_this_machine() -> None:
    with pytest.raises(AssertionError, match="loopback only"):
        open_connections("192.0.2.1", 80, 1)
