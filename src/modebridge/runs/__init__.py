"""A run as a graph: a store for artefacts, a plan of what is missing, an executor that makes it, and the results."""

from modebridge.runs.assemble import absent_weights, assembled, ensemble_of, some_images
from modebridge.runs.data_facts import setting_for
from modebridge.runs.estimate import effort_of
from modebridge.runs.executor import Executor, Local, Orders, make_job
from modebridge.runs.folder import RunFolder, machine
from modebridge.runs.given_modes import given_modes_of
from modebridge.runs.page_data import gather, write_page
from modebridge.runs.plan import Job, Plan, Stage, plan_of
from modebridge.runs.read_answers import missing_members, read_answers
from modebridge.runs.recipe_file import begin, find_recipe_of, recipe_to_go_on_with
from modebridge.runs.recipe_run import RunResult, run_recipe
from modebridge.runs.results import curve_warnings, main_rows
from modebridge.runs.run import Run
from modebridge.runs.shared_folder import SharedFolder, share_run
from modebridge.runs.shifted import ShiftedAnswers, shifted_answers

__all__ = [
    "Executor",
    "Job",
    "Local",
    "Orders",
    "Plan",
    "Run",
    "RunFolder",
    "RunResult",
    "SharedFolder",
    "ShiftedAnswers",
    "Stage",
    "absent_weights",
    "assembled",
    "begin",
    "curve_warnings",
    "effort_of",
    "ensemble_of",
    "find_recipe_of",
    "gather",
    "given_modes_of",
    "machine",
    "main_rows",
    "make_job",
    "missing_members",
    "plan_of",
    "read_answers",
    "recipe_to_go_on_with",
    "run_recipe",
    "setting_for",
    "share_run",
    "shifted_answers",
    "some_images",
    "write_page",
]
