# %% [markdown]
# # A cluster
#
# A run is a graph of stages: modes need nothing, a curve needs its two modes, bridges need curves and modes. With
# `--on ray`, [Ray](https://docs.ray.io) runs each stage as soon as its parents are done, on whatever machine is free.
# This page does so on the machine that built it, with short training; [several machines](../cluster.md) has the
# commands for a real cluster, for Kubernetes and for Slurm. It needs `pip install 'modebridge[cluster]'`.
#
# ## What there is to do
#
# `--plan` lists the stages without running them.

# %% language="bash"
# modebridge run digits --set modes=2 --set methods= --set mode.epochs=4 --set curve.epochs=4 --set bridge.epochs=4 \
#     --out runs/here --plan 2>&1

# %% [markdown]
# ## In one process
#
# First without Ray, to compare with. Four epochs are too few for good networks; they are enough to see how a run works.

# %% language="bash"
# modebridge run digits --set modes=2 --set methods= --set mode.epochs=4 --set curve.epochs=4 --set bridge.epochs=4 \
#     --out runs/here 2>&1 | tail -n 2
# ls runs/here

# %% [markdown]
# ## On Ray
#
# The same command with `--on ray` starts a Ray on this machine and ends it with the run. `--on HEAD:6379` uses a
# cluster that is already running.

# %% language="bash"
# modebridge run digits --set modes=2 --set methods= --set mode.epochs=4 --set curve.epochs=4 --set bridge.epochs=4 \
#     --out runs/ray --on ray 2>&1 | tail -n 2
# ls runs/ray

# %% [markdown]
# ## The same bytes
#
# Where a stage runs does not change its result:

# %% language="bash"
# for part in modes/0 modes/1 curves/0-1 bridges/I-0-1-small; do
#     cmp runs/here/$part/weights.safetensors runs/ray/$part/weights.safetensors && echo "$part: the same bytes"
# done

# %% [markdown]
# Started again, a run trains nothing: every artifact is found in the folder. The same holds after a crash, for what was
# finished before it.

# %% language="bash"
# modebridge run --out runs/ray 2>&1 | grep "Nothing"

# %% [markdown]
# ## How many machines help?
#
# `modebridge plan` counts the work of every stage, finds the longest path, and predicts the time on 1, 2, 4, ... GPUs.
# `--tflops` gives the sustained rate of one GPU, so nothing is measured here.

# %% language="bash"
# modebridge plan cifar10 --gpus 8 --tflops 30 2>&1

# %% [markdown]
# The numbers are predictions; [several machines](../cluster.md) says what they rest on.
