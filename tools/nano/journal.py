"""Progress of a run: lines on the console and a CSV of the curves."""
from __future__ import annotations

import time
from pathlib import Path


class Journal:
    def __init__(self, folder: Path, name: str, columns: tuple[str, ...]):
        self.path, self.columns, self.name = folder / f"{name}.csv", columns, name
        self.start = time.monotonic()
        if not self.path.exists():
            self.path.write_text(",".join(("step", "seconds") + columns) + "\n")

    def add(self, step: int, *values: float) -> None:
        seconds = time.monotonic() - self.start
        with self.path.open("a") as file:
            file.write(",".join([str(step), f"{seconds:.1f}"] + [f"{value:.5g}" for value in values]) + "\n")
        shown = "  ".join(f"{name} {value:.4g}" for name, value in zip(self.columns, values, strict=True))
        print(f"[{self.name}] step {step}  {seconds:.0f} s  {shown}", flush=True)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
