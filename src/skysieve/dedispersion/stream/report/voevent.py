"""A candidate as a VOEvent 2.0 packet (Seaman et al. 2011, IVOA recommendation)."""

from __future__ import annotations

import datetime
import math
import xml.etree.ElementTree as ET
from typing import Any

from skysieve.dedispersion.stream.records import CANDIDATE_COLUMNS

NAMESPACE = "http://www.ivoa.net/xml/VOEvent/v2.0"
SCHEMA = "http://www.w3.org/2001/XMLSchema-instance"


def voevent(
    columns: dict[str, Any], *, ivorn: str, role: str, ra: float, dec: float, source: str, telescope: str,
) -> str:  # fmt: skip
    """The packet as text.

    Parameters
    ----------
    columns : dict
        Values of a candidate, by the names of `CANDIDATE_COLUMNS`; some may be missing.
    ivorn : str
        Authority and stream, such as ``org.example/frb``.
    role : {"observation", "test"}
    ra, dec : float
        Degrees; with NaN the packet has no position.
    source, telescope : str

    Examples
    --------
    >>> c = {"snr": 12.0, "dm": 56.7, "width": 1e-3, "mjd_infinite": 60000.5, "beam": 2}
    >>> text = voevent(c, ivorn="org.example/frb", role="test", ra=10.0, dec=-5.0, source="B0531+21", telescope="")
    >>> "ivo://org.example/frb#60000.5000000000-2" in text, "2023-02-25T12:00:00" in text
    (True, True)
    """
    ET.register_namespace("voe", NAMESPACE)
    name = f"ivo://{ivorn}#{columns['mjd_infinite']:.10f}-{columns['beam']}"
    if columns.get("segment"):  # a sender that restarts may send the same times again
        name += f"-{columns['segment']}"
    root = ET.Element(f"{{{NAMESPACE}}}VOEvent", {
        "version": "2.0", "role": role, "ivorn": name,
        f"{{{SCHEMA}}}schemaLocation": f"{NAMESPACE} http://www.ivoa.net/xml/VOEvent/VOEvent-v2.0.xsd",
    })  # fmt: skip
    who = ET.SubElement(root, "Who")
    ET.SubElement(who, "AuthorIVORN").text = f"ivo://{ivorn.partition('/')[0]}"
    ET.SubElement(who, "Date").text = iso(datetime.datetime.now(datetime.UTC))
    what = ET.SubElement(root, "What")
    for column in CANDIDATE_COLUMNS:
        if column.voevent and column.name in columns:
            facts = {
                "name": column.name,
                "value": repr(columns[column.name]),
                "unit": column.unit.replace(" / cm3", "/cm^3"),
            }
            if column.ucd:
                facts["ucd"] = column.ucd
            ET.SubElement(what, "Param", facts)
    if source:
        ET.SubElement(what, "Param", {"name": "source", "value": source})
    where = ET.SubElement(root, "WhereWhen")
    data = ET.SubElement(where, "ObsDataLocation")
    ET.SubElement(data, "ObservatoryLocation", {"id": telescope or "unknown"})
    location = ET.SubElement(data, "ObservationLocation")
    ET.SubElement(location, "AstroCoordSystem", {"id": "UTC-FK5-TOPO"})
    coords = ET.SubElement(location, "AstroCoords", {"coord_system_id": "UTC-FK5-TOPO"})
    moment = ET.SubElement(ET.SubElement(coords, "Time", {"unit": "s"}), "TimeInstant")
    zero = datetime.datetime(1858, 11, 17, tzinfo=datetime.UTC)
    try:
        when = zero + datetime.timedelta(days=columns["mjd_infinite"])
    except OverflowError:
        raise ValueError(f"mjd_infinite={columns['mjd_infinite']!r}: expected a time in the years 1 to 9999") from None
    ET.SubElement(moment, "ISOTime").text = iso(when)
    if math.isfinite(ra) and math.isfinite(dec):
        place = ET.SubElement(coords, "Position2D", {"unit": "deg"})
        ET.SubElement(place, "Name1").text, ET.SubElement(place, "Name2").text = "RA", "Dec"
        value = ET.SubElement(place, "Value2")
        ET.SubElement(value, "C1").text, ET.SubElement(value, "C2").text = repr(ra), repr(dec)
    why = ET.SubElement(root, "Why")
    ET.SubElement(why, "Description").text = "dispersed radio pulse"
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def iso(moment: datetime.datetime) -> str:
    """UTC without a time zone, as VOEvents need it."""
    return moment.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
