"""The commands `rowtwin witness` and `rowtwin witness check`.

Nothing is imported here but what `check` needs, so that it answers at once.
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
    """`witness check FILE` checks one; everything else after `witness` takes one."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None,
                     **extra: Any) -> Any:
        """Hand over to the command that is meant."""
        if args[:1] == ["check"]:
            return super().make_context(info_name, args, parent=parent, **extra)
        return self.commands["take"].make_context(info_name, args, parent=parent, **extra)


app = typer.Typer(add_completion=False, no_args_is_help=True)
witness_app = typer.Typer(cls=WitnessGroup, help="Take a server's witness, or check one.")
app.add_typer(witness_app, name="witness")


@app.callback()
def _root() -> None:
    """Ask servers."""


@witness_app.command(epilog="Example: rowtwin witness check witness.json "
                            "--model-prefix qwen3.5-4b")
def check(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A witness of any tool.")],
    model_prefix: Annotated[str, typer.Option(
        metavar="TEXT", help="How the model's file name must start.")] = rules.MODEL_PREFIX,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")] = False,
) -> None:
    """Say whether a witness is admitted: exit 0, 1 with every reason, 2 for no witness at all."""
    if not model_prefix.strip():
        raise SuiteError("--model-prefix is empty, which would admit every model")
    word, reasons = judge_file(path, model_prefix)
    if as_json:
        print(json.dumps({"verdict": word, "reasons": reasons}, indent=2))
    else:
        print(word)
        for reason in reasons:
            print(f"{reason['rule'] or 'file'}: {reason['sentence']}")
    raise typer.Exit(EXIT_CODES[word])


def judge_file(path: Path, prefix: str) -> tuple[str, list[dict[str, str | None]]]:
    """Return the word on a file and why, each reason with its rule."""
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
    metavar="URL", help="Prometheus page that tells the batch (default: the server's /metrics).")]
Metric = Annotated[str | None, typer.Option(
    metavar="NAME", help="A gauge or histogram on it (default: those of known servers).")]
LogFile = Annotated[Path | None, typer.Option(
    metavar="FILE", help="The server's log, in place of metrics.")]
Pattern = Annotated[str | None, typer.Option(
    metavar="REGEX", help="Where the log tells a batch, its size in a group (default: Batch m=N).")]
Field = Annotated[str | None, typer.Option(
    metavar="PATH", help="A response's field that tells it, such as usage.batch.")]
Model = Annotated[str | None, typer.Option(
    metavar="NAME", help="The model to ask for (default: the only one offered).")]
ModelFile = Annotated[Path | None, typer.Option(
    metavar="FILE", help="The model's file, for its name and digest.")]
Binary = Annotated[Path | None, typer.Option(
    metavar="FILE", help="The server's binary, for its digest.")]
Commit = Annotated[str | None, typer.Option(
    metavar="ID", help="The commit that the server was built from.")]
Html = Annotated[Path | None, typer.Option(
    metavar="FILE", help="Also write a page to look at.")]


@witness_app.command(hidden=True, epilog="Example: rowtwin witness http://127.0.0.1:8000 --out "
                     "witness.json; then rowtwin witness check witness.json")
def take(
    url: Annotated[str, typer.Argument(help="An OpenAI-compatible server.", metavar="URL")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the witness goes.")],
    c: Annotated[str, typer.Option(metavar="LIST", help="Widths to measure.")] = "1,4,8,16",
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    n_predict: Annotated[int, typer.Option(
        min=1, max=1 << 16, metavar="N", help="Tokens a request.")] = 128,
    declared_min: Annotated[int, typer.Option(
        min=1, metavar="N", help="Tokens that must agree.")] = rules.FLOOR,
    replicates: Annotated[int, typer.Option(
        min=1, max=100, metavar="N", help="Repeats of each width; speeds are medians.")] = 3,
    mixed: Annotated[bool, typer.Option(
        help="Send different prompts too; without them slots that are mixed up are not seen, and "
             "a slow server's witness takes a third of the time.")] = True,
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
        min=0.1, max=1e6, metavar="SECONDS", help="The most that a request may take.")] = 300,
    wait: Annotated[float, typer.Option(
        min=0, max=1e6, metavar="SECONDS",
        help="How long the server may take until it lists its models.")] = 0,
    html: Html = None,
) -> None:
    """Take a server's witness: are requests batched, and did that change a token?

    Exits 0 when every band passed, 1 when one failed, 2 when one cannot be told.
    """
    from falsifiers.witness import run
    from falsifiers.witness.sources import SourceOptions
    from falsifiers.witness.take import PROMPT, Plan
    witness = run.run(
        run.WitnessRequest(
            url,
            out,
            Plan(
                run.parse_widths(c),
                run.read_prompt(prompt, prompt_file) or PROMPT,
                n_predict,
                declared_min,
                replicates,
                mixed,
            ),
            SourceOptions(metrics_url, metric, log_file, pattern, field),
            api_key,
            timeout,
            wait,
            model,
            model_file,
            binary,
            commit,
        ),
        partial(print, flush=True),
    )
    if html is not None:
        from reports.witness_page import page
        run.write_file(html, page(witness))
    if not mixed:
        print("different prompts were not sent, so nothing is said of slots that are mixed up")
    print(f"{out}: rowtwin witness check says whether it is admitted")
    raise typer.Exit(run.exit_code(witness["bands"]))
