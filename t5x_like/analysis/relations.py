"""Facts in the format of LAMA: relations with templates, whose objects a model is asked for (Petroni et al. 2019)."""

from collections.abc import Sequence

import numpy as np

from t5x_like.analysis import cloze
from t5x_like.analysis.analyzed_model import AnalyzedModel
from t5x_like.analysis.base import Section, Table
from t5x_like.analysis.cloze import BLANK, Cloze
from t5x_like.analysis.files import files_of, json_lines, text_field
from t5x_like.errors import UserError

_SUBJECT, _OBJECT = "[X]", "[Y]"
# Reciprocal ranks beyond it are 0, as in the published code.
_LOWEST_RANK = 5000


class Relations:
    """Measures how high the object of a fact ranks in the blank of the template of its relation.

    Only objects of one token count. Facts with the same subject and object count once. Precisions and mean reciprocal
    ranks are averaged over the relations. The original code ranks among the words that all compared models have; here
    all tokens of the model are ranked.

    Args:
      relations: A directory with a file per relation, such as `P19.jsonl`, with `sub_label` and `obj_label`.
      templates: A .jsonl file with `relation` and `template`, such as `[X] was born in [Y] .`
    """

    setting = "RELATIONS and TEMPLATES"

    def __init__(self, *, relations: str | None = None, templates: str | None = None):
        if (relations is None) != (templates is None):
            raise UserError("RELATIONS and TEMPLATES: one of them is missing. Give both.")
        self._relations, self._templates = relations, templates

    @property
    def is_ready(self) -> bool:
        """Whether there are relations and templates."""
        return self._relations is not None

    def check(self) -> None:
        """Reads the data; see `Analysis`."""
        self._read()

    def _read(self) -> dict[str, tuple[str, Sequence[Cloze]]]:
        """Returns the template and the facts of each relation that has a template."""
        templates = {
            text_field(where, value, "relation"): _template(where, value)
            for where, value in json_lines("TEMPLATES", self._templates)
        }
        files = files_of("RELATIONS", self._relations, ".jsonl")
        names = {file.rpartition("/")[2].removesuffix(".jsonl"): file for file in files}
        found = {
            name: (templates[name], _facts(file, name, templates[name]))
            for name, file in names.items()
            if name in templates
        }
        if not found:
            raise UserError(
                f"TEMPLATES={self._templates}: no template for {', '.join(list(names)[:3])} of RELATIONS. Give files "
                "named after their relation."
            )
        return found

    def run(self, analyzed: AnalyzedModel) -> Section:
        """Asks a checkpoint; see `Analysis`."""
        rows, data = [], {}
        for relation, (template, facts) in self._read().items():
            ranked = [of for _, of in cloze.fill(analyzed, facts) if of.rank is not None]
            if ranked:
                at_1, at_10, reciprocal = cloze.means(ranked, lowest=_LOWEST_RANK)
                rows.append([relation, template, len(ranked), at_1, at_10, reciprocal])
                data[relation] = {"facts": len(ranked), "P@1": at_1 / 100, "P@10": at_10 / 100, "MRR": reciprocal}
        if not rows:
            raise UserError(f"RELATIONS={self._relations}: no object is one token of the model. Give other facts.")
        average = [float(np.mean([row[column] for row in rows])) for column in (3, 4, 5)]
        total = ["mean of the relations", "", sum(row[2] for row in rows), *average]
        table = Table("Facts", ["relation", "template", "facts", "P@1, %", "P@10, %", "MRR"], [total, *rows])
        lead = f"{len(rows)} relations of {self._relations}. Objects of several tokens are left out."
        summary = {"P@1": average[0] / 100, "P@10": average[1] / 100, "MRR": average[2]}
        return Section("Facts", lead, [table], (), data, summary)


def _template(where: str, value: dict) -> str:
    template = text_field(where, value, "template")
    for name in (_SUBJECT, _OBJECT):
        if template.count(name) != 1:
            raise UserError(f"{where}: {template!r:.60} does not have {name} once. Correct the template.")
    return template


def _facts(file: str, relation: str, template: str) -> Sequence[Cloze]:
    found: dict[tuple[str, str], Cloze] = {}
    for where, value in json_lines("RELATIONS", file):
        pair = text_field(where, value, "sub_label"), text_field(where, value, "obj_label")
        text = template.replace(_SUBJECT, pair[0]).replace(_OBJECT, BLANK)
        if text.count(BLANK) != 1:
            raise UserError(f"{where}: {pair[0]!r:.60} contains {BLANK}. Remove the fact.")
        found.setdefault(pair, Cloze(where, relation, text, [pair[1]], []))
    return list(found.values())
