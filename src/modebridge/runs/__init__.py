"""A run as a graph: a store for artifacts, what is missing, executors that make it, and the results."""

from modebridge.runs.ensemble import absent_weights, ensemble_of, share_run
from modebridge.runs.graph import Job
from modebridge.runs.local import Executor, Local, machine, make_job
from modebridge.runs.plan import begin, existing, find_recipe_of, recipe_in, setting_for
from modebridge.runs.results import gather, main_rows, missing_members, read_answers, write_page
from modebridge.runs.run import Run, run_recipe, write_results
from modebridge.runs.store import RunFolder

__all__ = [
    "Executor",
    "Job",
    "Local",
    "Run",
    "RunFolder",
    "absent_weights",
    "begin",
    "ensemble_of",
    "existing",
    "find_recipe_of",
    "gather",
    "machine",
    "main_rows",
    "make_job",
    "missing_members",
    "read_answers",
    "recipe_in",
    "run_recipe",
    "setting_for",
    "share_run",
    "write_page",
    "write_results",
]
