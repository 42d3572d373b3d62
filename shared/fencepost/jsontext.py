"""Compact JSON, by an encoder that is made once: `JSONEncoder.encode` makes one for each value."""

import json
import json.encoder
from collections.abc import Callable
from typing import Any


def encoder(*, sort_keys: bool = False) -> Callable[[Any], str]:
    """What writes values as compact JSON, characters as they are.

    TypeError for what is no JSON, ValueError for NaN and infinities, RecursionError for what holds itself.
    """
    plain = json.JSONEncoder(
        ensure_ascii=False,
        check_circular=False,
        allow_nan=False,
        sort_keys=sort_keys,
        separators=(",", ":"),
    )
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without json's accelerator
        return plain.encode
    write_text = json.encoder.encode_basestring
    write = make(None, plain.default, write_text, None, ":", ",", sort_keys, False, False)

    def encode(value: Any) -> str:
        return "".join(write(value, 0))

    return encode
