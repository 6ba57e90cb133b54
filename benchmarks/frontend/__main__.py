"""Capture models and small functions with the front end and with Dynamo, and compare.

    python -m benchmarks.frontend --models BertModel,GPT2Model --json results.jsonl --markdown

Three tables: `models` of transformers, the `corpus` of small functions, the `cost` of a call and a capture.
What is measured of a model is written down at once: a run that was interrupted goes on with `--resume`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.frontend import corpus, cost, table
from benchmarks.frontend.measured import Measured, append, latest, measure, read
from benchmarks.frontend.models import Model, chosen
from benchmarks.telling import print_table, tell

TYPICAL_SECONDS = 25.0
"""Of one model, on two cores: for the estimate that is printed first."""
PARTS = ("cost", "models", "corpus")


def main() -> None:
    options = _options()
    # A shell that starts us in the background has interrupts ignored, which the programs would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parts = options.parts.split(",") if options.parts else ["models"] if options.models else PARTS
    wrong = 0
    if "cost" in parts:
        tell("a call and the capture of BERT-base, about two minutes")
        _show(options, "seconds", cost.HEADINGS, cost.cells([*cost.calls(), cost.bert_base()]), "")
    if "models" in parts:
        found = _models(chosen([word for word in options.models.split(",") if word]), options)
        told = "\n".join([table.summary(found), *table.reasons(found)])
        _show(options, "models: ours / Dynamo", table.HEADINGS, [table.cells(one) for one in found], told)
        wrong += sum(not one.ours.right for one in found)
    if "corpus" in parts:
        rows = corpus.measure([word for word in options.themes.split(",") if word])
        _show(options, "corpus: ours / Dynamo", corpus.HEADINGS, corpus.cells(rows), corpus.summary(rows))
        wrong += sum(not row.ours.right for row in rows)
    if wrong:
        sys.exit(1)


def _models(models: Sequence[Model], options: argparse.Namespace) -> list[Measured]:
    if options.json and not options.resume:
        options.json.unlink(missing_ok=True)
    done = latest(read(options.json)) if options.json else {}
    todo = [model for model in models if model.name not in done]
    if todo:
        tell(f"{len(todo)} models, about {len(todo) * TYPICAL_SECONDS / 60:.0f} minutes")
    for number, model in enumerate(todo, start=1):
        one = measure(model, options.time_limit)
        if options.json:
            append(options.json, one)
        done[model.name] = one
        tell(f"[{number}/{len(todo)}] {' | '.join(table.cells(one))}")
    return [done[model.name] for model in models if model.name in done]


def _show(
    options: argparse.Namespace,
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    told: str,
) -> None:
    if options.markdown:
        print(table.markdown(headings, rows, told), end="\n\n")
    else:
        print_table(title, headings, rows, told)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.frontend", description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", default="", help="of cost,models,corpus (default: all)")
    parser.add_argument("--models", default="", help="names of models: BertModel,T5Model (default: all)")
    parser.add_argument("--themes", default="", help="themes of the corpus: lists,modules (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="one line of JSON a model")
    parser.add_argument("--resume", action="store_true", help="leave out what --json FILE has already")
    parser.add_argument("--markdown", action="store_true", help="print the section for docs/benchmarks.md")
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="S", help="for one model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
