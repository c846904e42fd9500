"""A program that helps to build a version, as every rank of torchrun or task of an array would.

Usage: together.py URL ID NOTES OPTIONS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from parted import Counted

from torchyoga import Storage

if __name__ == "__main__":
    url, id, notes, options = sys.argv[1:]
    storage = Storage(url, **json.loads(options))
    ref = storage.submit(Counted(240, Path(notes), slow=0.01), id, "1.0", together=True, progress=False)
    print(ref.fingerprint, flush=True)
