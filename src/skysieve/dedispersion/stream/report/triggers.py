"""Triggers, which send each candidate to a program or a server."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from typing import ClassVar

from skysieve.dedispersion.stream.records import Candidate

from .drawing import name_of
from .voevent import voevent

COMMAND_SECONDS, POST_SECONDS = 30.0, 10.0
"""Most seconds that a command, and a request, may take."""


class Trigger(ABC):
    """Sends candidates to a target; see `TRIGGERS` for the kinds.

    Attributes
    ----------
    target_name, help : str
        Name of the value after ``KIND:`` on the command line, and description of the trigger.
    """

    target_name: ClassVar[str]
    help: ClassVar[str]

    @abstractmethod
    def __init__(self, target: str, *, ivorn: str, role: str) -> None:
        """Check the target and the options."""

    @abstractmethod
    def send(self, candidate: Candidate) -> None:
        """Send a candidate.

        Raises
        ------
        OSError, ValueError, ArithmeticError, subprocess.SubprocessError, http.client.HTTPException
            The candidate could not be sent.
        """


class CommandTrigger(Trigger):
    """Runs a program, which reads the candidate as JSON from its standard input."""

    target_name, help = "PROGRAM", "runs a program, which gets the candidate as JSON on its standard input"

    def __init__(self, target: str, *, ivorn: str = "", role: str = "") -> None:
        self.words = shlex.split(target)
        if not self.words:
            raise ValueError(f"command={target!r}: expected a program")
        if shutil.which(self.words[0]) is None:
            raise ValueError(f"command={target!r}: there is no program {self.words[0]}")

    def send(self, candidate: Candidate) -> None:
        """See `Trigger.send`."""
        values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in candidate.columns.items()}
        values["name"] = name_of(candidate.columns)
        subprocess.run(  # in its own session, so that Ctrl-C at the terminal does not reach it
            self.words, input=json.dumps(values, allow_nan=False), text=True, check=True, timeout=COMMAND_SECONDS,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


class VOEventTrigger(Trigger):
    """Posts the candidate as a VOEvent 2.0 packet."""

    target_name, help = "URL", "posts the candidate as a VOEvent 2.0 packet by HTTP"

    def __init__(self, target: str, *, ivorn: str, role: str) -> None:
        if not re.match(r"https?://[^/\s]", target):
            raise ValueError(f"voevent={target!r}: expected http:// or https:// and a host")
        if not re.fullmatch(r"[\w.-]+(/[\w./-]+)?", ivorn):
            raise ValueError(f"ivorn={ivorn!r}: expected an authority and a stream, such as org.example/frb")
        self.url, self.ivorn, self.role = target, ivorn, role

    def send(self, candidate: Candidate) -> None:
        """See `Trigger.send`."""
        import urllib.request

        o = candidate.observation
        body = voevent(
            candidate.columns, ivorn=self.ivorn, role=self.role, ra=o.ra, dec=o.dec, source=o.source,
            telescope=o.telescope,
        )  # fmt: skip
        request = urllib.request.Request(self.url, body.encode(), {"Content-Type": "text/xml"}, method="POST")
        with urllib.request.urlopen(request, timeout=POST_SECONDS):
            pass


TRIGGERS: dict[str, type[Trigger]] = {"command": CommandTrigger, "voevent": VOEventTrigger}
"""The kinds of triggers.  A new one needs a class and an entry here."""


def make_trigger(text: str, *, ivorn: str = "skysieve/stream", role: str = "observation") -> Trigger:
    """Make the trigger of an option ``KIND:TARGET``.

    Parameters
    ----------
    text : str
    ivorn, role : str
        For VOEvents: authority and stream, and "observation" or "test".

    Raises
    ------
    ValueError
        The kind is unknown, or the target is not valid for it.

    Examples
    --------
    >>> make_trigger("command:cat -").words
    ['cat', '-']
    """
    kind, colon, target = text.partition(":")
    if not colon or kind not in TRIGGERS:
        forms = " or ".join(f"{name}:{made.target_name}" for name, made in TRIGGERS.items())
        raise ValueError(f"trigger={text!r}: expected {forms}")
    return TRIGGERS[kind](target, ivorn=ivorn, role=role)
