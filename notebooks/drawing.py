"""How all notebooks draw: importing this sets their style, whose colours have names
here.
"""

from pathlib import Path

import matplotlib.pyplot as plt

plt.style.use(Path(__file__).with_name("rff_dist.mplstyle"))

BLUE, ORANGE, GREEN, RED, PURPLE, TEAL, GOLD = (f"C{i}" for i in range(7))
INK = "#22262e"
MUTED = "#80868f"
PALE = "#c9d8ec"
GRID = "#e6e8eb"
DASHES = (0, (4, 2.5))
