"""Gemini's `generateContent` at the address of Vertex AI."""

from __future__ import annotations

import re
from typing import ClassVar

from tests.models.servers.gemini import Gemini


class Vertex(Gemini):
    _HOME: ClassVar = re.compile(
        r"/v1(beta1)?/publishers/google/models/[\w.:-]+?:(generateContent|streamGenerateContent\?alt=sse)"
    )
