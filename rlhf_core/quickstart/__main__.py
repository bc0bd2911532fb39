"""`python -m rlhf_core.quickstart OUT_DIR [SEED]`: make the quickstart's world by hand and say where it lies."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlhf_core.quickstart import ensure_quickstart_world


def main() -> None:
    """Read the command line and make the world."""
    parser = argparse.ArgumentParser(prog="python -m rlhf_core.quickstart", description=__doc__)
    parser.add_argument("out_dir", type=Path, help="folder that keeps the worlds")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    arguments = parser.parse_args()
    world = ensure_quickstart_world(arguments.out_dir, seed=arguments.seed)
    print(f"data:  {world.data}\nmodel: {world.model}")


if __name__ == "__main__":
    main()
