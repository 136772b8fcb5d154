"""Addresses of servers, as options of commands give them."""

from __future__ import annotations

__all__ = ["format_address", "parse_address"]


def parse_address(text: str, name: str) -> tuple[str, int]:
    """Read ``HOST:PORT``, or ``PORT`` of the loopback interface.

    >>> parse_address("[::1]:5000", "--listen"), parse_address("5000", "--listen")
    (('::1', 5000), ('127.0.0.1', 5000))
    """
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or (colon and not host):
        raise ValueError(f"{name} {text}: expected HOST:PORT")
    return (host.strip("[]") if colon else "127.0.0.1"), int(port)


def format_address(host: str, port: int) -> str:
    """The inverse of `parse_address`.

    >>> format_address("::1", 5000)
    '[::1]:5000'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
