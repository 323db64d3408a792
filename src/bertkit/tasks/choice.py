"""Multiple choice (section 4.4): each option is read together with the prompt and scored at [CLS]."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bertkit.data.records import Choice
from bertkit.data.windows import NOTHING, Input, Layout
from bertkit.tasks.metrics import softmax
from bertkit.tasks.task import Task, check_texts
from bertkit.text.tokenizer import Tokenizer


class Chosen(NamedTuple):
    """The index of the likeliest option, and the probability of each."""

    option: int
    probabilities: list[float]


class MultipleChoice(Task):
    layout: ClassVar[Layout] = Layout(by_unit=True, picks=True)
    loss: ClassVar[str] = "picks"
    outputs = 1

    def units(self, records: Sequence[Choice], tokenizer: Tokenizer) -> list[list[Input]]:
        check_texts(records, "prompt")
        prompts = tokenizer.pieces([record.prompt for record in records])
        options = iter(tokenizer.pieces([option for record in records for option in record.options]))
        units = []
        for record, prompt in zip(records, prompts, strict=True):
            target = [NOTHING if record.label is None else record.label]
            joined = [tokenizer.join(prompt, next(options), max_length=self.settings.max_length) for _ in record.options]
            units.append([Input.of(encoding, target) for encoding in joined])
        return units

    def answers(self, records: Sequence[Choice], units: Sequence[Sequence[Input]], logits: Sequence[Any]) -> list[Any]:
        chances = [softmax(np.concatenate(options)[:, 0] / self.settings.temperature) for options in logits]
        return [Chosen(int(found.argmax()), found.tolist()) for found in chances]

    def value(self, answer: Any) -> Any:
        return answer.option
