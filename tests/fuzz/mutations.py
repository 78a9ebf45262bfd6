"""Bytes made from whole files: what disks, copies and liars make of them."""

from __future__ import annotations

import re

from hypothesis import strategies as st

TOKENS = re.compile(rb'"[^"\n]{0,60}"|-?\d[\d.e+-]{0,20}|true|false|null|NaN')
ODD = [b"1e999", b"NaN", b"-1", b"0", b"1.5", b"null", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b'"\\u0000"']
ODD += [b"9" * 5000, b"[" * 3000, b"[" * 900 + b"]" * 900, b"(" * 3000, str(2**63).encode(), b"-" * 500]
ODD += [b"'", b"\xff\xfe"]
KINDS = ["flip", "cut", "delete", "repeat", "zero", "insert", "token", "token", "token", "splice"]


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    data = draw(st.sampled_from(seeds))
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4)):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        to = at + draw(st.integers(1, 64))
        if kind == "token":
            found = list(TOKENS.finditer(data[:4096]))
            if found:
                token = found[draw(st.integers(0, len(found) - 1))]
                others = [*ODD, *{f.group() for f in found}]
                new = others[draw(st.integers(0, len(others) - 1))]
                data = data[: token.start()] + new + data[token.end() :]
        elif kind == "splice":
            other = draw(st.sampled_from(seeds))
            data = data[:at] + other[draw(st.integers(0, len(other))) :]
        else:
            piece = data[at:to]
            new = {
                "flip": bytes([piece[0] ^ 1 << draw(st.integers(0, 7)), *piece[1:]]) if piece else b"",
                "cut": None,
                "delete": b"",
                "repeat": piece * draw(st.sampled_from([2, 3, 100])) if kind == "repeat" else b"",
                "zero": bytes(len(piece)),
                "insert": draw(st.binary(max_size=8)) + piece if kind == "insert" else b"",
            }[kind]
            data = data[:at] if new is None else data[:at] + new + data[to:]
    return data
