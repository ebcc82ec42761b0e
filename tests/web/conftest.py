"""The folder of these tests is on the path, for the tools and the visitors that they share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
