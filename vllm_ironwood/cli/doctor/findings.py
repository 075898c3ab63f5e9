# SPDX-License-Identifier: Apache-2.0
"""What the doctor found: one line each, with how to mend it when it is not in order."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How bad a finding is. Only an error makes `ironwood doctor` exit with 1."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` says what to do and is empty when nothing has to be done."""

    section: str
    name: str
    value: str
    status: Status = Status.OK
    remedy: str = ""
