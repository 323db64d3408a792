"""Vectors → answers: heads, their losses, answers and metrics."""

from bertkit.tasks.choice import MultipleChoice
from bertkit.tasks.classification import Classification, Multilabel, Regression
from bertkit.tasks.qa import QuestionAnswering
from bertkit.tasks.similarity import Similarity
from bertkit.tasks.tagging import Tagging
from bertkit.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "multilabel": Multilabel,
    "regression": Regression,
    "tagging": Tagging,
    "qa": QuestionAnswering,
    "choice": MultipleChoice,
    "similarity": Similarity,
}
