"""Cut one face out of the sheet of samples beside the prior of faces.

python docs/a_face.py face.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

SHEET = Path(__file__).parents[1] / "zoo" / "faces64" / "samples.png"

if __name__ == "__main__":
    Image.open(SHEET).crop((128, 320, 192, 384)).save(sys.argv[1])
