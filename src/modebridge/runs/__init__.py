"""A run as a graph: a store for artifacts, what is missing, executors that make it, and the results."""

from modebridge.runs.ensemble import (
    absent_weights as absent_weights,
    ensemble_of as ensemble_of,
    share_run as share_run,
)
from modebridge.runs.graph import Job as Job
from modebridge.runs.local import Executor as Executor, Local as Local, machine as machine, make_job as make_job
from modebridge.runs.plan import (
    begin as begin,
    existing as existing,
    find_recipe_of as find_recipe_of,
    recipe_in as recipe_in,
    setting_for as setting_for,
)
from modebridge.runs.results import (
    gather as gather,
    main_rows as main_rows,
    missing_members as missing_members,
    read_answers as read_answers,
    training_of as training_of,
    write_page as write_page,
)
from modebridge.runs.run import Run as Run, run_recipe as run_recipe, write_results as write_results
from modebridge.runs.store import RunFolder as RunFolder
