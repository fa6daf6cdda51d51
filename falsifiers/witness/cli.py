"""The commands `rowtwin witness` and `rowtwin witness check`.

This module imports only what `check` needs, so that it starts fast.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from falsifiers.judging.errors import SuiteError
from falsifiers.witness import file, rules

ADMISSIBLE, NOT_ADMISSIBLE, RED = "ADMISSIBLE", "NOT ADMISSIBLE", "RED"
EXIT_CODES = {ADMISSIBLE: 0, NOT_ADMISSIBLE: 1, RED: 2}


class WitnessGroup(TyperGroup):
    """Runs `check` for `witness check FILE`, and `take` for any other arguments."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None,
                     **extra: Any) -> Any:
        """Return the context of the chosen command."""
        if args[:1] == ["check"]:
            return super().make_context(info_name, args, parent=parent, **extra)
        return self.commands["take"].make_context(info_name, args, parent=parent, **extra)


app = typer.Typer(add_completion=False, no_args_is_help=True)
witness_app = typer.Typer(cls=WitnessGroup, help="Take a server's witness, or check one.")
app.add_typer(witness_app, name="witness")


@app.callback()
def _root() -> None:
    """Take witnesses."""


@witness_app.command(epilog="Example: rowtwin witness check witness.json "
                            "--model-prefix qwen3.5-4b")
def check(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A witness file of any tool.")],
    model_prefix: Annotated[str, typer.Option(
        metavar="TEXT", help="The required start of the model's file name.")] = rules.MODEL_PREFIX,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
) -> None:
    """Judge a witness: exit 0 if admissible, 1 with every reason if not, 2 if malformed."""
    if not model_prefix.strip():
        raise SuiteError("--model-prefix is empty, which would admit every model: pass a name")
    word, reasons = judge_file(path, model_prefix)
    if as_json:
        print(json.dumps({"verdict": word, "reasons": reasons}, indent=2))
    else:
        print(word)
        for reason in reasons:
            print(f"{reason['rule'] or 'file'}: {reason['sentence']}")
    raise typer.Exit(EXIT_CODES[word])


def judge_file(path: Path, prefix: str) -> tuple[str, list[dict[str, str | None]]]:
    """Return the verdict on a file, and each reason with its rule."""
    try:
        witness = file.read_witness(path)
    except file.MalformedWitness as why:
        return RED, [{"rule": None, "sentence": str(why)}]
    found = rules.judge_witness(witness, prefix)
    return NOT_ADMISSIBLE if found else ADMISSIBLE, \
        [{"rule": reason.rule, "sentence": reason.sentence} for reason in found]


Prompt = Annotated[str | None, typer.Option(
    metavar="TEXT", help="The witness prompt (default: a built-in sentence).")]
PromptFile = Annotated[Path | None, typer.Option(
    metavar="FILE", help="Read the witness prompt from a file.")]
MetricsUrl = Annotated[str | None, typer.Option(
    metavar="URL", help="Prometheus page with the batch size (default: the server's /metrics).")]
Metric = Annotated[str | None, typer.Option(
    metavar="NAME", help="A gauge or histogram on that page (default: those of known servers).")]
LogFile = Annotated[Path | None, typer.Option(
    metavar="FILE", help="Read the batch size from the server's log instead.")]
Pattern = Annotated[str | None, typer.Option(
    metavar="REGEX", help="Pattern of a log line, the size as its group (default: Batch m=N).")]
Field = Annotated[str | None, typer.Option(
    metavar="PATH", help="Read the batch size from this response field, such as usage.batch.")]
Model = Annotated[str | None, typer.Option(
    metavar="NAME", help="The requested model (default: the only one listed).")]
ModelFile = Annotated[Path | None, typer.Option(
    metavar="FILE", help="The model's file, for its name and digest.")]
Binary = Annotated[Path | None, typer.Option(
    metavar="FILE", help="The server's binary, for its digest.")]
Commit = Annotated[str | None, typer.Option(
    metavar="ID", help="The commit that the server was built from.")]
Html = Annotated[Path | None, typer.Option(
    metavar="FILE", help="Also write an HTML page.")]


@witness_app.command(hidden=True, epilog="Example: rowtwin witness http://127.0.0.1:8000 --out "
                     "witness.json; then rowtwin witness check witness.json")
def take(
    url: Annotated[str, typer.Argument(help="An OpenAI-compatible server.", metavar="URL")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the witness to this file.")],
    c: Annotated[str, typer.Option(metavar="LIST", help="Widths to measure.")] = "1,4,8,16",
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    n_predict: Annotated[int, typer.Option(
        min=1, max=1 << 16, metavar="N", help="Tokens of each request.")] = 128,
    declared_min: Annotated[int, typer.Option(
        min=1, metavar="N", help="Tokens that must agree.")] = rules.FLOOR,
    replicates: Annotated[int, typer.Option(
        min=1, max=100, metavar="N", help="Repeats of each width; speeds are medians.")] = 3,
    mixed: Annotated[bool, typer.Option(
        help="Send different prompts too. Without them swapped slots are not detected, and a "
             "slow server takes a third of the time.")] = True,
    metrics_url: MetricsUrl = None,
    metric: Metric = None,
    log_file: LogFile = None,
    pattern: Pattern = None,
    field: Field = None,
    model: Model = None,
    model_file: ModelFile = None,
    binary: Binary = None,
    commit: Commit = None,
    api_key: Annotated[str | None, typer.Option(
        metavar="KEY", envvar="ROWTWIN_API_KEY", help="Sent as a bearer token.")] = None,
    timeout: Annotated[float, typer.Option(
        min=0.1, max=1e6, metavar="SECONDS", help="Time limit of a request.")] = 300,
    wait: Annotated[float, typer.Option(
        min=0, max=1e6, metavar="SECONDS",
        help="Wait this long for the server to list its models.")] = 0,
    html: Html = None,
) -> None:
    """Take a server's witness: does it batch requests, and does batching change a token?

    Exits 0 if every band passed, 1 if one failed, 2 if one is UNMEASURABLE.
    """
    from falsifiers.witness import run
    from falsifiers.witness.sources import SourceOptions
    from falsifiers.witness.take import PROMPT, Plan
    plan = Plan(run.parse_widths(c), run.read_prompt(prompt, prompt_file) or PROMPT, n_predict,
                declared_min, replicates, mixed)
    request = run.WitnessRequest(
        url, out, plan, SourceOptions(metrics_url, metric, log_file, pattern, field), api_key,
        timeout, wait, model, model_file, binary, commit)
    witness = run.run(request, partial(print, flush=True))
    if html is not None:
        from reports.witness_page import page
        run.write_file(html, page(witness))
    if not mixed:
        print("different prompts were not sent, so swapped slots would not be detected")
    print(f"wrote {out}; to judge it: rowtwin witness check {out}")
    raise typer.Exit(run.exit_code(witness["bands"]))
