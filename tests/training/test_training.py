"""The loop against torch's own optimiser by hand, the schedule, and the checks before training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from modebridge import trees
from modebridge.curves import start_curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.objectives import CurveObjective, ModeObjective
from modebridge.training import Engine, Task, TrainConfig, fit_bridge, fit_curve, fit_curves, fit_modes, train
from modebridge.training.step import FlatLayout, Step, make_forward, sgd_
from tests.plans import fit_mode
from tests.scenarios import EXACT, blobs, loader, modes, quick, tiny_net


def test_schedule_of_the_facts():
    config = TrainConfig(epochs=200)
    assert [config.factor(e) for e in range(5)] == pytest.approx([0.01, 0.2575, 0.505, 0.7525, 1.0])
    assert config.factor(199) == pytest.approx(6.4e-5, rel=0.01)
    assert TrainConfig(epochs=1, warmup=5).factor(0) == 1.0


@pytest.mark.parametrize("norm", ["frn", "bn"])
def test_the_loop_is_plain_sgd(norm):
    config = TrainConfig(epochs=3, lr=0.05, weight_decay=1e-2, warmup=2, keep="last")
    got = fit_mode(tiny_net(0, norm, EXACT), loader(20, 8, dtype=EXACT), config=config)
    net = tiny_net(0, norm, EXACT).train()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
    data = loader(20, 8, dtype=EXACT)
    for epoch in range(3):
        optimiser.param_groups[0]["lr"] = 0.05 * config.factor(epoch)
        for images, labels in data:
            optimiser.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimiser.step()
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(got.state[name], tensor, rtol=0, atol=1e-12)


def test_the_callers_module_is_left_alone_and_zero_epochs_is_the_start():
    net = tiny_net(0, "bn").eval()
    before = trees.fingerprint(net.state_dict())
    fit_mode(net, loader(), config=quick(1))
    assert trees.fingerprint(net.state_dict()) == before
    assert not net.training
    assert fit_mode(net, loader(), config=quick(0)).id == Mode.from_module(net).id


def test_training_learns():
    mode = fit_mode(tiny_net(), loader(48), config=quick(30))
    data = blobs(48, seed=9)
    assert float((mode.load(tiny_net())(data.images).argmax(-1) == data.labels).float().mean()) > 0.9


def test_progress_is_reported():
    seen = []
    fit_mode(tiny_net(), loader(), quick(3, callbacks=(lambda epoch: seen.append((epoch.number, epoch.losses)),)))
    assert [done for done, _ in seen] == [1, 2, 3]
    assert all(losses["mode"] > 0 for _, losses in seen)


def test_best_needs_validation_data():
    with pytest.raises(ModebridgeError, match="validation data"):
        fit_mode(tiny_net(), loader(), config=replace(quick(), keep="best"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "to have batches, but got none"),
        ((pair for pair in []), "more than once"),
        ([torch.zeros(2, 1, 8, 8)], r"to yield \(images, labels\)"),
        ([(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2).long())], "divide uint8 images by 255"),
        ([(torch.full((2, 1, 8, 8), float("nan")), torch.zeros(2).long())], "NaN or Inf"),
        ([(torch.full((2, 1, 8, 8), float("inf")), torch.zeros(2).long())], "NaN or Inf"),
        ([(torch.zeros(2, 1, 8, 8), torch.zeros(3).long())], "3 for 2"),
        ([(torch.zeros(2, 1, 8, 8), torch.zeros(2))], "to be integers"),
        ([(torch.zeros(2, 1, 8, 8), [0, 1])], "to be integers"),
        ([{"images": torch.zeros(2, 1, 8, 8)}], "to hold labels under one of labels, label"),
        ([(torch.zeros(2, 3, 8, 8), torch.zeros(2).long())], r"to run on the images of train, but got \(3, 8, 8\)"),
        ([(torch.zeros(2, 1, 8, 8).double(), torch.zeros(2).long())], "check their shape and type"),
        ([(torch.zeros(2, 1, 8, 8), torch.tensor([0, 3]))], r"in \[0, 3\), but got 0 to 3"),
        ([(torch.zeros(2, 1, 8, 8), torch.tensor([0, -1]))], r"in \[0, 3\), but got -1 to 0"),
    ],
)
def test_bad_data_is_refused_before_training(data, message):
    net, (a, b) = tiny_net(), modes(2)
    with pytest.raises(ModebridgeError, match=message):
        fit_mode(net, data, config=quick())
    if not isinstance(data, list):
        return
    with pytest.raises(ModebridgeError, match=message):
        fit_curve(net, a, b, data, config=quick())


def test_bad_data_in_a_later_batch_of_a_list():
    good = next(iter(loader()))
    with pytest.raises(ModebridgeError, match="NaN or Inf"):
        fit_mode(tiny_net(), [good, (good[0] * float("nan"), good[1])], config=quick())


def later(batch):
    """A loader (not a list, so only its first batch is seen beforehand) whose second batch is `batch`."""
    good = next(iter(loader()))
    return DataLoader([good, batch], batch_size=None)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x, y: (x, y + 9), r"labels of train to be in \[0, 3\)"),
        (lambda x, y: (x * float("nan"), y), "images of train to be finite"),
        (lambda x, y: (x, y[:-1]), "as many labels as images in train"),
        (lambda x, y: {"x": x}, "dicts of train to hold labels"),
    ],
)
def test_bad_data_in_a_later_batch_of_a_loader_is_the_same_sentence(spoil, message):
    net, (a, b) = tiny_net(), modes(2)
    bad = later(spoil(*next(iter(loader()))))
    curve = start_curve(net, a, b)
    for fit in (
        lambda: fit_mode(net, bad, config=quick()),
        lambda: fit_curve(net, a, b, bad, config=quick()),
        lambda: fit_bridge(net, curve, bad, target="labels", config=quick()),
    ):
        with pytest.raises(ModebridgeError, match=message):
            fit()


@pytest.mark.parametrize(
    ("valid", "message"),
    [
        ([], "valid to have batches, but got none"),
        (iter([]), "valid to be iterable more than once"),
        ([(torch.zeros(2, 1, 8, 8), torch.tensor([0, 7]))], r"labels of valid to be in \[0, 3\)"),
        ([(torch.full((2, 1, 8, 8), float("nan")), torch.tensor([0, 1]))], "images of valid to be finite"),
    ],
)
def test_bad_validation_data_is_refused_before_training(valid, message):
    net, (a, b) = tiny_net(), modes(2)
    began: list[object] = []
    config = replace(quick(callbacks=(began.append,)), keep="best")
    for fit in (
        lambda: fit_mode(net, loader(), config=config, valid=valid),
        lambda: fit_curve(net, a, b, loader(), config=config, valid=valid),
        lambda: fit_bridge(net, start_curve(net, a, b), loader(), config=config, valid=valid),
    ):
        with pytest.raises(ModebridgeError, match=message):
            fit()
    assert not began


def test_labels_of_any_whole_type_will_do():
    small = [(images, labels.int()) for images, labels in loader()]
    plain = list(loader())
    assert fit_mode(tiny_net(), small, config=quick(1)).id == fit_mode(tiny_net(), plain, config=quick(1)).id
    net, (a, b) = tiny_net(), modes(2)
    fit_bridge(net, start_curve(net, a, b), small, target="labels", config=quick(1))


def test_frozen_parameters_stay_frozen():
    net = tiny_net()
    net.layers[0].requires_grad_(False)
    before, after = Mode.from_module(net), fit_mode(net, loader(), config=quick(1, weight_decay=0.1))
    for name, tensor in before.params.items():
        assert torch.equal(after.params[name], tensor) == name.startswith("layers.0.")


@pytest.mark.parametrize("nesterov", ["no", "standard"])
def test_update_is_that_of_torch(nesterov):
    torch.manual_seed(0)
    config = TrainConfig(epochs=1, weight_decay=0.1, nesterov=nesterov)
    mine, momentum = torch.randn(100, dtype=EXACT), torch.zeros(100, dtype=EXACT)
    theirs = mine.clone().requires_grad_()
    optimiser = torch.optim.SGD([theirs], lr=0.3, momentum=0.9, weight_decay=0.1, nesterov=nesterov == "standard")
    for _ in range(4):
        gradient = torch.randn(100, dtype=EXACT)
        sgd_(mine, momentum, gradient, 0.3, config)
        theirs.grad = gradient
        optimiser.step()
    torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=1e-12)


def test_the_authors_nesterov_steps_along_gradient_plus_buffer():
    flat, momentum = torch.tensor([1.0]), torch.tensor([2.0])
    sgd_(flat, momentum, torch.tensor([0.5]), 0.1, TrainConfig(epochs=1, nesterov="authors"))
    assert float(momentum) == pytest.approx(0.9 * 2.0 + 0.5)
    assert float(flat) == pytest.approx(1.0 - 0.1 * (0.5 + 2.3))


def test_best_keeps_the_epoch_with_the_fewest_errors():
    """The error rate by hand after every epoch; what is kept is the weights of the lowest."""
    valid, seen = blobs(30, seed=5), []
    config = TrainConfig(epochs=6, lr=0.05, warmup=1, keep="best")
    objective = ModeObjective(tiny_net(), Mode.from_module(tiny_net()))
    original = objective.validate

    def spy(states, batches):
        logits = objective.result(states).load(tiny_net())(valid.images)
        seen.append((float((logits.argmax(-1) != valid.labels).float().mean()), objective.result(states).id))
        scores = original(states, batches)
        assert scores["mode"] == pytest.approx(seen[-1][0])
        return scores

    objective.validate = spy
    (kept,) = train([Task(objective, loader(), [(valid.images, valid.labels)])], config)
    assert objective.result(kept).id == min(seen, key=lambda pair: pair[0])[1]


def test_tasks_together_end_where_each_ends_alone():
    nets = [tiny_net(s, "bn") for s in range(3)]
    loaders = [loader(seed=s) for s in range(3)]
    together = fit_modes(nets, loaders, config=quick(3))
    for k in range(3):
        assert fit_mode(nets[k], loader(seed=k), config=quick(3)).id == together[k].id
    a, b, c = modes(3)
    net = tiny_net()
    curves = fit_curves(net, [(a, b), (b, c)], [loader(seed=s) for s in range(2)], config=quick(2))
    alone = fit_curve(net, b, c, loader(seed=1), config=quick(2, seed=1))
    assert trees.fingerprint(*curves[1].pins) == trees.fingerprint(*alone.pins)
    assert curves[1].start is b
    with pytest.raises(ModebridgeError, match="one loader for each"):
        fit_modes(nets, loaders[:2])


def test_curves_together_have_the_statistics_that_each_has_alone():
    net, (a, b, c) = tiny_net(0, "bn"), modes(3, "bn")
    scores: list[dict[str, float]] = []
    told = (lambda epoch: scores.append(epoch.scores),)
    config, valid = TrainConfig(epochs=1, lr=0.05, warmup=1, keep="best", callbacks=told), loader(8, seed=5)
    data = [loader(8, seed=s) for s in range(2)]
    together = fit_curves(net, [(a, b), (b, c)], data, config=config, valid=valid)
    alone = fit_curve(
        net,
        b,
        c,
        loader(8, seed=1),
        config=replace(config, seed=1),
        valid=valid,
    )
    assert together[1].at(0.5).id == alone.at(0.5).id
    assert scores[0]["1/curve"] == scores[1]["curve"]
    agreed = fit_curves(net, [(a, b), (b, c)], data, config=config, valid=valid, statistics=data[0])
    assert agreed[0].at(0.5).id == together[0].at(0.5).id
    assert agreed[1].at(0.5).id != together[1].at(0.5).id


def test_layout_keeps_numbers_names_and_memory_order():
    net = tiny_net()
    params = dict(net.named_parameters())
    layout = FlatLayout(params)
    flat = layout.pack(params)
    views = layout.views(flat)
    assert views.keys() == params.keys()
    for name, view in views.items():
        assert torch.equal(view, params[name])
        if view.dim() == 4:
            assert view.is_contiguous(memory_format=torch.channels_last)
    flat.zero_()
    assert all(float(view.abs().sum()) == 0 for view in views.values())


@pytest.mark.slow
def test_compiled_losses_are_the_same():
    """Traced whole, without a break, and run by the tracer itself: what a GPU compiles is what a CPU computes."""
    net, (a, b) = tiny_net(0, "bn", EXACT), modes(2, "bn", EXACT)
    for pins in (1, 2):
        curve = start_curve(net, a, b, pins=pins)
        objective = CurveObjective(net, curve, loader(dtype=EXACT))
        state = objective.start()["curve"]
        layout = FlatLayout(state.params)
        forward = make_forward(objective.program("curve"), layout)
        traced = torch.compile(forward, backend="eager", fullgraph=True)
        steps = [Step(state, layout, f, quick(), Engine()) for f in (forward, traced)]
        batch = next(iter(loader(dtype=EXACT)))
        prepared = objective.prepare(batch, objective.draw(8, torch.Generator().manual_seed(0)))["curve"]
        for _ in range(2):
            one, two = (step(prepared, 0.1) for step in steps)
            torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


def test_engines_refuse_what_is_not_there():
    with pytest.raises(ModebridgeError, match="graphs on a CUDA device"):
        Engine(graphs=True)
    if not torch.cuda.is_available():
        with pytest.raises(ModebridgeError, match="torch sees none"):
            Engine(torch.device("cuda"))
        assert Engine.best() == Engine()


def test_a_diverging_loss_stops_the_run():
    with pytest.raises(ModebridgeError, match=r"loss of 'mode' to be finite, but got .* in epoch"):
        fit_mode(tiny_net(), loader(), config=replace(quick(30), lr=1e6))


def test_r_and_modes_are_checked_before_training():
    net, (a, b) = tiny_net(), modes(2)
    with pytest.raises(ModebridgeError, match="r to be in"):
        fit_curve(net, a, b, loader(), r=-1)
    curve = fit_curve(net, a, b, loader(), config=quick(1))
    with pytest.raises(ModebridgeError, match="to have batches"):
        fit_bridge(net, curve, [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", -1),
        ("epochs", 2.5),
        ("lr", float("nan")),
        ("momentum", -0.1),
        ("weight_decay", float("inf")),
        ("warmup", 0),
    ],
)
def test_bad_configs(field, value):
    with pytest.raises(ModebridgeError, match=f"Expected {field} to be (a number|an integer) of at least"):
        replace(TrainConfig(epochs=1), **{field: value})
    with pytest.raises(ModebridgeError, match="'best' or 'last'"):
        TrainConfig(epochs=1, keep="all")  # type: ignore[arg-type]
