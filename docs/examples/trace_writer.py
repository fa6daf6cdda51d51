"""A writer of rowtwin traces to copy into another engine; docs/traces.md has the format."""

import json
from pathlib import Path

from safetensors.torch import save_file

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class TraceWriter:
    """Call `begin` before a step, `tensor` after each op, and `end` after the step."""

    def __init__(self, folder, engine, model):
        self.folder, self.step = Path(folder), -1
        self.folder.mkdir(parents=True)
        self._line(format="rowtwin-trace", version=1, engine=engine, model=model)

    def begin(self, rows):
        """Start a step; `rows` has (slot, position, token ids) of each row in batch order."""
        self.step, self.rows, self.lines, self.tensors = self.step + 1, rows, [], {}

    def tensor(self, op, name, x, layer=None):
        """Record an op's output (`output`) or input (`input 0`): x [tokens of all rows, ...]."""
        parts = x.detach().cpu().split([len(tokens) for _, _, tokens in self.rows])
        for (slot, _, _), part in zip(self.rows, parts, strict=True):
            key = str(len(self.tensors))
            self.tensors[key] = part.clone()
            self.lines.append({"slot": slot, "layer": layer, "op": op, "name": name, "tensor": key,
                               "dtype": DTYPES[str(x.dtype).removeprefix("torch.")],
                               "shape": list(part.shape)})

    def end(self):
        """Write the step."""
        file = f"step-{self.step:06}.safetensors"
        save_file(self.tensors, self.folder / file)
        rows = [{"slot": s, "position": p, "tokens": list(t)} for s, p, t in self.rows]
        self._line(step=self.step, file=file, rows=rows)
        for line in self.lines:
            self._line(**line)

    def _line(self, **fields):
        with (self.folder / "index.jsonl").open("a") as index:
            index.write(json.dumps(fields) + "\n")
