"""The golden vectors survive Postgres: the text column they are kept in, and jsonb, which reorders keys."""

import json

import psycopg

from fencepost.canonical import arguments_hash, encode, parse
from fencepost_ops.local import LocalPostgres
from tests.unit.golden import VECTORS


def test_every_hash_survives_a_trip_through_jsonb(postgres: LocalPostgres) -> None:
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]
    texts = [vector["canonical"] for vector in vectors]
    with psycopg.connect(postgres.superuser_dsn) as connection:
        rows = connection.execute(
            "SELECT t, t::jsonb::text FROM unnest(%s::text[]) WITH ORDINALITY AS u (t, n) ORDER BY n", [texts]
        ).fetchall()
    assert [kept for kept, _ in rows] == texts
    assert any(through != kept for kept, through in rows)  # or nothing was shown
    for vector, (_, through) in zip(vectors, rows, strict=True):
        value = parse(through)
        assert encode(value).decode() == vector["canonical"]
        assert arguments_hash(value) == vector["hash"]
