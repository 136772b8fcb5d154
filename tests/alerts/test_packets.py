"""Packets are read as fastavro reads them, and bytes that are no packets are set aside."""

from __future__ import annotations

import io
import json
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from tests.alerts.packets import (
    confluent,
    container,
    fast_container,
    fast_lsst_packets,
    lsst_packet,
    lsst_schema,
    star,
    ztf_packet,
    ztf_schema,
)

from skysieve.alerts.packets import BadPacket, Decoder, read_header, read_long
from skysieve.alerts.schemas import SchemaError, compile_schema, read_schema
from skysieve.alerts.surveys import DETECTION, FORCED, band_name

fastavro = pytest.importorskip("fastavro")
FLOAT32 = 2.0**-24
"""Relative rounding of fluxes, which are stored as float32."""


def lsst_rows(packet: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Rows of a packet as fastavro gave it."""
    rows = [(s, "diaSourceId", DETECTION) for s in [packet["diaSource"], *(packet["prvDiaSources"] or [])]]
    rows += [(s, "diaForcedSourceId", FORCED) for s in packet["prvDiaForcedSources"] or []]
    return [
        (s[name], s["visit"], s["midpointMjdTai"], s["psfFlux"], s["psfFluxErr"], s["band"], kind)
        for s, name, kind in rows
    ]


def ours(packets: Any) -> list[tuple[Any, ...]]:
    return [
        (int(r["id"]), int(r["exposure"]), float(r["t"]), float(r["y"]), float(r["dy"]), band_name(r["band"]),
         int(r["kind"])) for r in packets.rows
    ]  # fmt: skip


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_lsst_packets_are_read_as_fastavro_reads_them(codec):
    made = [lsst_packet(star(k, n=10 + k), cutout=50, forced=k) for k in range(1, 6)]
    made.append(lsst_packet(star(9, n=1), cutout=0))
    data = container(made, lsst_schema(), block=4000, codec=codec)
    expected = list(fastavro.reader(io.BytesIO(data)))
    found = Decoder().message(data)
    assert found.bad == []
    assert found.objects == [p["diaObject"]["diaObjectId"] for p in expected]
    assert ours(found) == [row for p in expected for row in lsst_rows(p)]
    assert found.counts == [len(lsst_rows(p)) for p in expected]


def packed_again(data: bytes, codec: str) -> bytes:
    """A container of one block without a codec, with one of Arrow's."""
    pyarrow = pytest.importorskip("pyarrow")
    header = read_header(data, Decoder())
    count, at = read_long(data, header.size)
    size, at = read_long(data, at)
    block = data[at : at + size]
    packed = pyarrow.compress(block, {"zstandard": "zstd"}.get(codec, codec), asbytes=True)
    packed += zlib.crc32(block).to_bytes(4, "big") if codec == "snappy" else b""
    numbers = io.BytesIO()
    for number in (count, len(packed)):
        fastavro.schemaless_writer(numbers, "long", number)
    name = bytes([2 * len(codec)]) + codec.encode()
    return data[: header.size].replace(b"\x08null", name) + numbers.getvalue() + packed + header.sync


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_blocks_that_arrow_unpacks(codec, monkeypatch):
    plain = container([lsst_packet(star(k, n=10 + k), cutout=50) for k in range(3)], lsst_schema(), block=10**7)
    data = packed_again(plain, codec)
    assert ours(Decoder().message(data)) == ours(Decoder().message(plain))
    size = len(read_header(data, Decoder()).sync)
    rng = np.random.default_rng(1)
    for at in rng.integers(len(data) - 5000, len(data) - size, 50):
        bad = bytearray(data)
        bad[at] ^= 1 + int(rng.integers(0, 255))
        found = Decoder().message(bytes(bad))
        assert found.bad or codec == "zstandard"  # zstandard has no checksum unless its writer adds one
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert f"{codec!r}, which needs pyarrow: pip install" in Decoder().message(data).bad[0][0]


def test_packets_that_the_benchmark_makes():
    """Packets that are written without fastavro are equal to those that it writes."""
    stars = [star(k, n=1 + 3 * k) for k in range(3)]
    read = list(fastavro.reader(io.BytesIO(fast_container(fast_lsst_packets(stars, 50), lsst_schema()))))
    assert read == list(
        fastavro.reader(io.BytesIO(container([lsst_packet(s, cutout=50) for s in stars], lsst_schema())))
    )


def test_ztf_packets_are_signed_fluxes():
    s = star(3, n=30, bands=3)
    data = container([ztf_packet(s, cutout=10, limits=4)], ztf_schema())
    found = Decoder().message(data)
    assert found.objects == ["ZTF18aa0000003"]
    assert found.left_out == 4  # visits in which the star was not seen
    rows = np.sort(found.rows, order="id")
    assert (s.flux < 0).any()
    # magpsf and sigmapsf are float32: an error of half a unit in the last place of a magnitude of 22.7 at most, 2**-20
    scatter = np.abs(s.flux) * 2.0**-20 * 0.4 * np.log(10) * 1.01
    np.testing.assert_array_less(np.abs(rows["y"] - s.flux), scatter + FLOAT32 * np.abs(s.flux))
    np.testing.assert_allclose(rows["dy"], s.error, rtol=2.0**-19)
    np.testing.assert_allclose(rows["t"], s.mjd, rtol=0, atol=2**-31)  # jd is a float64: a step is 2**-31
    assert [band_name(b) for b in rows["band"]] == ["gri"[b] for b in s.band]


def test_messages_in_confluents_format():
    packet = lsst_packet(star(5, n=12), cutout=100, forced=3)
    decoder = Decoder({703: lsst_schema()})
    found = decoder.message(confluent(packet, lsst_schema(), 703))
    assert found.bad == []
    assert ours(found) == ours(Decoder().message(container([packet], lsst_schema())))
    unknown = decoder.message(confluent(packet, lsst_schema(), 704))
    assert "schema number 704" in unknown.bad[0][0]


def random_schema(rng: np.random.Generator, depth: int, used: list[str]) -> Any:
    """Any schema of Avro."""
    kinds = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    if depth:
        kinds += ["array", "map", "union", "record", "fixed", "enum"]
    kind = str(rng.choice(kinds))
    name = f"type{len(used)}"
    if kind in ("record", "fixed", "enum"):
        used.append(name)
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth - 1, used)}
    if kind == "map":
        return {"type": "map", "values": random_schema(rng, depth - 1, used)}
    if kind == "union":
        return ["null", random_schema_but_union(rng, depth - 1, used)]
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": int(rng.integers(0, 9))}
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["a", "b", "c"]}
    if kind == "record":
        fields = [{"name": f"f{i}", "type": random_schema(rng, depth - 1, used)} for i in range(rng.integers(0, 4))]
        return {"type": "record", "name": name, "fields": fields}
    return kind


def random_schema_but_union(rng: np.random.Generator, depth: int, used: list[str]) -> Any:
    while True:
        schema = random_schema(rng, depth, used)
        if not isinstance(schema, list) and schema != "null":
            return schema


def random_value(rng: np.random.Generator, schema: Any) -> Any:
    """A value of a schema of `random_schema`."""
    if isinstance(schema, list):
        return random_value(rng, schema[rng.integers(0, 2)])
    kind = schema if isinstance(schema, str) else schema["type"]
    size = int(rng.integers(0, 4))
    values = {
        "null": lambda: None, "boolean": lambda: bool(size % 2), "int": lambda: int(rng.integers(-(2**31), 2**31)),
        "long": lambda: int(rng.integers(-(2**63), 2**63)), "float": lambda: 1.5, "double": lambda: 2.5,
        "bytes": lambda: rng.bytes(size * 50), "string": lambda: "ü" * size, "enum": lambda: "abc"[size % 3],
        "fixed": lambda: rng.bytes(schema["size"]),
        "array": lambda: [random_value(rng, schema["items"]) for _ in range(size)],
        "map": lambda: {f"k{i}": random_value(rng, schema["values"]) for i in range(size)},
        "record": lambda: {f["name"]: random_value(rng, f["type"]) for f in schema["fields"]},
    }  # fmt: skip
    return values[kind]()


@pytest.mark.slow
def test_packets_with_any_other_fields_are_read():
    """Fields of random types stand between those that are wanted: in the packet, in sources and in the object."""
    for seed in range(60):
        rng, used = np.random.default_rng(seed), list[str]()

        def more(schema: dict[str, Any], rng: Any = rng, used: Any = used) -> None:
            for i in range(3):
                at = int(rng.integers(0, len(schema["fields"]) + 1))
                schema["fields"].insert(at, {"name": f"new{i}", "type": random_schema(rng, 3, used)})

        schema = lsst_schema()
        source = schema["fields"][3]["type"]
        about = schema["fields"][6]["type"][1]
        for record in (source, about, schema):
            more(record)

        def filled(values: dict[str, Any], record: dict[str, Any], rng: Any = rng) -> dict[str, Any]:
            new = {f["name"]: random_value(rng, f["type"]) for f in record["fields"] if f["name"].startswith("new")}
            return values | new

        packet = filled(lsst_packet(star(seed, n=6), cutout=5, forced=2), schema)
        packet["diaSource"] = filled(packet["diaSource"], source)
        packet["prvDiaSources"] = [filled(s, source) for s in packet["prvDiaSources"]]
        packet["diaObject"] = filled(packet["diaObject"], about)
        found = Decoder({1: schema}).message(confluent(packet, schema, 1))
        assert found.bad == []
        assert found.objects == [seed]
        (expected,) = fastavro.reader(io.BytesIO(container([packet], schema)))
        assert ours(found) == lsst_rows(expected)


def test_damaged_bytes_never_raise():
    """Every prefix, and many changed bytes: a packet, or a reason, and no rows that the packet does not have."""
    good = confluent(lsst_packet(star(1, n=4), cutout=5), lsst_schema(), 1)
    decoder = Decoder({1: lsst_schema()})
    rng = np.random.default_rng(5)
    for size in range(0, len(good), 7):
        assert len(decoder.message(good[:size]).bad) == 1
    reasons = set()
    for _ in range(2000):
        data = bytearray(good)
        for at in rng.integers(5, len(data), 3):
            data[at] = rng.integers(0, 256)
        found = decoder.message(bytes(data))
        reasons |= {why for why, _ in found.bad}
        assert len(found.objects) == (0 if found.bad else 1)
    assert len(reasons) >= 4
    assert decoder.message(good).bad == []
    assert "follow the last record" in decoder.message(good + b"x").bad[0][0]
    for data in (b"", b"Obj\x01", b"\0\0", b"hello", container([], lsst_schema())[:-3]):
        assert len(decoder.message(data).bad) == 1
    assert decoder.message(container([], lsst_schema())).bad == []


@pytest.mark.slow
def test_packets_that_are_large():
    """More rows than there was room for, and lists in several blocks with their sizes in bytes."""
    s = star(2, n=4200)
    found = Decoder().message(container([lsst_packet(star(1, n=3), cutout=0), lsst_packet(s, cutout=0)], lsst_schema()))
    assert found.counts == [3, 4200]
    endless = {"name": "prvDiaSources", "type": {"type": "array", "items": "null"}}
    schema = lsst_schema()
    schema["fields"].append({**endless, "name": "nothing"})
    data = confluent(lsst_packet(star(1, n=3), cutout=0) | {"nothing": []}, schema, 1)
    many = data[:-1] + bytes([0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0])
    assert "longer list" in Decoder({1: schema}).message(many).bad[0][0]


def test_packets_without_an_object():
    packet = lsst_packet(star(1, n=5), cutout=0) | {"diaObject": None}
    found = Decoder().message(container([packet], lsst_schema()))
    assert found.objects == [None]
    assert found.bad == []


def test_rows_without_a_value_are_left_out():
    packet = lsst_packet(star(1, n=6), cutout=0)
    packet["prvDiaSources"][0]["psfFlux"] = None
    packet["prvDiaSources"][1]["psfFluxErr"] = 0.0
    packet["prvDiaSources"][2]["band"] = None
    packet["prvDiaSources"][3]["midpointMjdTai"] = float("nan")
    found = Decoder().message(container([packet], lsst_schema()))
    assert (found.counts, found.left_out, found.bad) == ([2], 4, [])
    packet["prvDiaSources"][4]["midpointMjdTai"] += 2_400_000.5  # a Julian date
    found = Decoder().message(container([packet], lsst_schema()))
    assert (found.counts, found.left_out, found.bad) == ([1], 5, [])
    packet["diaSource"]["band"] = "white light"
    assert "more than four bytes" in Decoder().message(container([packet], lsst_schema())).bad[0][0]


def test_values_that_are_too_large_are_left_out_without_a_warning():
    packet = ztf_packet(star(1, n=6, bands=2), cutout=0)
    packet["prv_candidates"][0]["magpsf"] = -999.0
    packet["prv_candidates"][1]["magpsf"] = -80.0  # too large for float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Decoder().message(container([packet], ztf_schema()))
    assert (found.counts, found.left_out, found.bad) == ([4], 2, [])


def test_schemas_that_change():
    """New fields, other orders and missing fields that are not needed do no harm; needed ones are named."""
    packet = lsst_packet(star(1, n=5), cutout=0)
    newer = lsst_schema("apFluxZeta:f? note:s?")
    for s in [packet["diaSource"], *packet["prvDiaSources"]]:
        s |= {"apFluxZeta": 1.0, "note": "later"}
    expected = ours(Decoder().message(container([packet], lsst_schema())))
    assert ours(Decoder().message(container([packet], newer))) == expected
    found = Decoder().message(container([packet], lsst_schema(without=("visit", "apFlux", "glint_trail"))))
    assert [row[2:] for row in ours(found)] == [row[2:] for row in expected]
    assert {row[1] for row in ours(found)} == {-1}
    with pytest.raises(SchemaError, match=r"the schema of LSST has no field diaSource\.psfFlux$"):
        compile_schema(lsst_schema(without=("psfFlux",)))
    schema = lsst_schema()
    schema["fields"][3]["type"]["fields"][6]["type"] = "string"
    with pytest.raises(SchemaError, match=r"diaSource\.midpointMjdTai is of type string: expected float or double"):
        compile_schema(schema)


@pytest.mark.parametrize(
    ("schema", "field", "kind", "message"),
    [
        (lsst_schema(), "band", "int", r"diaSource\.band is of type int: expected string or bytes"),
        (ztf_schema(), "fid", "string", r"candidate\.fid is of type string: expected int or long"),
    ],
)
def test_bands_of_another_type_are_refused(schema, field, kind, message):
    """A number has no name of a band of LSST, and its rows would be another band than those with a name."""
    sources = [f["type"] for f in schema["fields"] if f["name"] in ("diaSource", "candidate")]
    (band,) = (f for f in sources[0]["fields"] if f["name"] == field)
    band["type"] = ["null", kind]
    with pytest.raises(SchemaError, match=message):
        compile_schema(schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("string", "expected the schema of a record"),
        ({"type": "record", "name": "a", "fields": [{"name": "x", "type": "int"}]}, "the packet has the fields x"),
        ({"type": "record", "name": "a"}, "the schema is damaged: KeyError 'fields'"),
        (
            {"type": "record", "name": "a", "fields": [{"name": n, "type": "b"} for n in ("objectId", "candidate")]},
            "names the type b, which it does not define",
        ),
    ],
)
def test_schemas_that_are_refused(schema, message):
    with pytest.raises(SchemaError, match=message):
        compile_schema(schema)
    data = container([{"a": 1}], {"type": "record", "name": "b", "fields": [{"name": "a", "type": "int"}]})
    assert "expected the fields of a known survey" in Decoder().message(data).bad[0][0]


def test_schema_files_in_parts(tmp_path):
    """LSST publishes each record in a file of its own."""
    schema = lsst_schema()
    for at, name in ((3, "diaSource"), (6, "diaObject")):
        kind = schema["fields"][at]["type"]
        inner = kind[1] if isinstance(kind, list) else kind
        (tmp_path / f"lsst.v10_0.{name}.avsc").write_text(json.dumps(inner | {"name": name, "namespace": "lsst.v10_0"}))
        named = f"lsst.v10_0.{name}"
        schema["fields"][at]["type"] = ["null", named] if isinstance(kind, list) else named
    (tmp_path / "alert.avsc").write_text(json.dumps(schema))
    packet = lsst_packet(star(5, n=12), cutout=100, forced=3)
    found = Decoder({1: read_schema(tmp_path / "alert.avsc")}).message(confluent(packet, lsst_schema(), 1))
    assert ours(found) == ours(Decoder().message(container([packet], lsst_schema())))
    (tmp_path / "lsst.v10_0.diaObject.avsc").unlink()
    with pytest.raises(SchemaError, match=r"there is no file .*lsst\.v10_0\.diaObject\.avsc"):
        read_schema(tmp_path / "alert.avsc")
    for text in ("{", "[1]", json.dumps({"id": 1, "schema": json.dumps(schema)})):  # the last: a registry's answer
        (tmp_path / "alert.avsc").write_text(text)
        with pytest.raises(SchemaError, match=r"alert\.avsc: expected an Avro schema in JSON"):
            read_schema(tmp_path / "alert.avsc")
    with pytest.raises(SchemaError, match="--schema 7: expected the schema of a record"):
        Decoder({7: "string"})


def test_a_codec_that_is_not_known():
    data = container([lsst_packet(star(1, n=3), cutout=0)], lsst_schema()).replace(b"\x08null", b"\x08zips")
    with pytest.raises(
        BadPacket, match="is compressed with 'zips': expected one of null, deflate, bzip2, xz, snappy, zstandard"
    ):
        read_header(data, Decoder())
