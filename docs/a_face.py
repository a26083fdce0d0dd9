"""Cut one face out of the sheet of samples beside the prior of synthetic faces.

python docs/a_face.py face.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

SHEET = Path(__file__).parents[1] / "zoo" / "synthfaces64" / "samples.png"

if __name__ == "__main__":
    Image.open(SHEET).crop((192, 192, 256, 256)).save(sys.argv[1])
