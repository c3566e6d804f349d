"""Together is one by one, also where networks differ in what no checkpoint holds; frozen layers; students by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import modebridge as mb
from modebridge import seeds, trees
from modebridge.baselines import BatchEnsemble
from modebridge.bridges import plan_bridge
from modebridge.curves import start_curve
from modebridge.errors import ModebridgeError
from modebridge.matching import PAPER_LOSS, DistillationLoss, draw_mixing, mix, mixed, pixel_shares
from modebridge.modes import Mode, refresh_statistics
from modebridge.objectives import BridgeObjective, StudentObjective
from modebridge.training import fit_curve, fit_modes, fit_students, fresh_mode
from tests.scenarios import EXACT, Vectors, blobs, fit_bridges, fit_mode, loader, modes, plan_student, quick, tiny_net


class Scaled(nn.Module):
    """Its answer depends on a plain attribute and on a buffer that is not persistent; one layer can be frozen."""

    def __init__(self, scale: float = 1.0, shift: float = 0.0, inputs: int = 4) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("shift", torch.tensor(shift), persistent=False)
        self.stem = nn.Linear(inputs, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.stem(self.scale * x + self.shift)))


def made(seed: int, **options: float) -> Scaled:
    torch.manual_seed(seed)
    return Scaled(**options).double()  # type: ignore[arg-type]


def batches(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(6, 4, generator=generator, dtype=torch.float64), torch.arange(6) % 3) for _ in range(3)]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return trees.fingerprint(a) == trees.fingerprint(b)


OPTIONS = [{"scale": 1.0}, {"scale": 3.0}, {"scale": 1.0, "shift": 0.5}]


def test_networks_trained_together_are_their_own():
    nets = [made(0, **options) for options in OPTIONS]
    nets[0].stem.requires_grad_(False)
    data = [batches(k) for k in range(3)]
    together = fit_modes(nets, data, config=quick(2, weight_decay=0.1))
    for k, (net, mode) in enumerate(zip(nets, together, strict=True)):
        alone = fit_mode(net, data[k], config=quick(2, seed=k, weight_decay=0.1))
        assert same(mode.state, alone.state)
        for name, tensor in net.named_parameters():
            assert torch.equal(mode.params[name], tensor) == (not tensor.requires_grad)
    assert not same(together[1].state, together[2].state)


@pytest.mark.parametrize("alphas", [(0.7, 0.0), (0.0, 1.0)])
def test_labels_are_mixed_like_images(alphas):
    """One step on one mixed batch, with autograd; half of the batches are not cut."""
    batch = blobs(8, dtype=EXACT).images, blobs(8).labels
    config = replace(quick(1), momentum=0.0, mixup=alphas[0], cutmix=alphas[1])
    cut = 0
    for seed in range(6):
        net = tiny_net(5, dtype=EXACT)
        ours = fit_mode(net, [batch], config=replace(config, seed=seed))
        draw = draw_mixing(8, *alphas, seeds.generator(seed, "draws"), half=True)
        share = pixel_shares(draw, batch[0]).double()
        cut += not bool(share.all())
        images = mix(batch[0], share, draw["partner"])
        own = share.flatten(1).mean(dim=1) if alphas[1] else share
        target = mix(F.one_hot(batch[1], 3).double(), own, draw["partner"])
        net.train()
        loss = -(target * net(images).log_softmax(-1)).sum(-1).mean()
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        lr = config.lr * config.factor(0)
        for (name, parameter), gradient in zip(net.named_parameters(), gradients, strict=True):
            torch.testing.assert_close(ours.params[name], parameter - lr * gradient, rtol=1e-9, atol=1e-12)
    assert 0 < cut < 6 or not alphas[1]


def test_mixing_is_refused_where_it_has_no_meaning():
    net, config = tiny_net(), quick(1, cutmix=1.0)
    with pytest.raises(ModebridgeError, match=r"left out for curves, but got mixup=None and cutmix=1.0"):
        fit_curve(net, *modes(2), loader(), config)
    with pytest.raises(ModebridgeError, match="left out for networks with several members inside"):
        fit_modes([BatchEnsemble(net, 2, example=blobs(1).images)], loader(), config)


def test_students_with_attention_keep_the_initialization_of_their_layers():
    """The paper's has a standard deviation of .447 in the last layer for ten classes, from which they do not learn."""
    net = nn.Sequential(nn.Linear(4, 512), nn.LayerNorm(512), nn.Linear(512, 10))
    fresh = fresh_mode(net, 3).params
    bound = 512**-0.5  # torch's default
    assert bound / 2 < float(fresh["2.weight"].abs().max()) <= bound
    assert float(fresh_mode(nn.Sequential(net[0], net[2]), 3).params["1.weight"].std()) > 0.4
    assert not torch.equal(fresh["2.weight"], net[2].weight)
    assert torch.equal(fresh["2.weight"], fresh_mode(net, 3).params["2.weight"])


def test_bodies_trained_together_are_their_own():
    net = made(0)
    curve = start_curve(net, Mode.from_module(made(1)), Mode.from_module(made(2)))

    def plan(options):
        torch.manual_seed(9)
        return plan_bridge(net, curve, batches()[0][0], tap="stem", body=Scaled(**options, inputs=6).double())

    plans = {str(k): plan(options) for k, options in enumerate(OPTIONS)}
    together = fit_bridges(net, plans, batches(), config=quick(2))
    for name in plans:
        alone = fit_bridges(net, {name: plans[name]}, batches(), config=quick(2))[name]
        assert same(together[name].state_dict(), alone.state_dict())
    assert not same(together["0"].state_dict(), together["1"].state_dict())
    programs = BridgeObjective(net, plans | {"twin": plan(OPTIONS[0])}).program
    assert programs("0") is programs("twin"), "one program serves bodies that are alike"
    assert programs("0") is not programs("1")


@pytest.mark.parametrize(("pins", "pin_start"), [(1, "midpoint"), (2, "midpoint"), (1, "random"), (2, "random")])
def test_a_curve_leaves_frozen_layers_where_its_ends_have_them(pins, pin_start):
    net = made(0)
    net.stem.requires_grad_(False)
    ends = [made(seed) for seed in (1, 2)]
    ends[1].stem.weight.data.copy_(ends[0].stem.weight.data)  # shared by both ends; the bias is not
    a, b = (Mode.from_module(end) for end in ends)
    config = quick(2, weight_decay=1e-2)
    curve = fit_curve(net, a, b, batches(), pins=pins, pin_start=pin_start, config=config)
    for r in (0.1, 0.5, 0.7):
        assert torch.equal(curve.at(r).params["stem.weight"], a.params["stem.weight"])
        line = (1 - r) * a.params["stem.bias"] + r * b.params["stem.bias"]
        torch.testing.assert_close(curve.at(r).params["stem.bias"], line, rtol=0, atol=1e-14)
    middle = (a.params["head.weight"] + b.params["head.weight"]) / 2
    assert not torch.allclose(curve.at(0.5).params["head.weight"], middle)
    assert list(curve.pins[0]) == list(a.params)


def test_a_bridge_leaves_frozen_layers_of_its_body_alone():
    net = made(0)
    curve = start_curve(net, Mode.from_module(made(1)), Mode.from_module(made(2)))
    torch.manual_seed(3)
    body = Scaled(inputs=6).double()
    body.stem.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    plans = {"b": plan_bridge(net, curve, batches()[0][0], tap="stem", body=body)}
    trained = fit_bridges(net, plans, batches(), config=quick(2, weight_decay=1e-2))["b"].body
    assert same(body.state_dict(), before), "the caller's module"
    for name, tensor in trained.state_dict().items():
        assert torch.equal(tensor, before[name]) == name.startswith("stem."), name
    assert {name for name, p in trained.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}
    body.requires_grad_(False)
    with pytest.raises(ModebridgeError, match="Expected Scaled to have trainable parameters, but got requires_grad="):
        fit_bridges(net, plans, batches(), config=quick(2))
    net.requires_grad_(False)
    for fit in (lambda: fit_mode(net, batches()), lambda: fit_curve(net, curve.start, curve.end, batches())):
        with pytest.raises(ModebridgeError, match="Expected Scaled to have trainable parameters"):
            fit()


def test_one_list_of_batches_serves_all_networks():
    nets, data = [made(0), made(1)], batches()
    one, each = (fit_modes(nets, loaders, quick(1)) for loaders in (data, [data, data]))
    assert [mode.id for mode in one] == [mode.id for mode in each]


def probabilities(count: int, rows: int = 5, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(count, rows, 4, generator=generator, dtype=EXACT)).softmax(-1)


@pytest.mark.parametrize(("temperature", "soft", "hard"), [(1.0, 1.0, 0.0), (4.0, 1.8, 0.1), (0.5, 0.7, 2.0)])
def test_the_gradient_is_the_one_by_hand(temperature, soft, hard):
    """d loss / d logits = (soft T (q_T - p_T) + hard (q - y)) / B."""
    loss = DistillationLoss(temperature, soft, hard)
    teachers, labels = probabilities(3), F.one_hot(torch.arange(5) % 4, 4).double()
    logits = torch.randn(5, 4, dtype=EXACT, generator=torch.Generator().manual_seed(9)).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(loss.target(teachers), labels if hard else None, logits), logits)
    tempered = teachers ** (1 / temperature)
    p = (tempered / tempered.sum(-1, keepdim=True)).mean(0)
    z = logits.detach()
    by_hand = soft * temperature * ((z / temperature).softmax(-1) - p) + hard * (z.softmax(-1) - labels)
    torch.testing.assert_close(gradient, by_hand / 5, rtol=1e-12, atol=1e-14)


def test_the_authors_mean_over_teachers_has_the_same_gradient():
    """0.1 CE + 2 * 0.9 T^2 mean_m KL(p_m || q) as their code has it, by torch's own functions."""
    teachers, labels = probabilities(3), torch.arange(5) % 4
    logits = torch.randn(5, 4, dtype=EXACT, generator=torch.Generator().manual_seed(9)).requires_grad_()
    own = PAPER_LOSS(PAPER_LOSS.target(teachers), F.one_hot(labels, 4).double(), logits)
    divergences = [
        F.kl_div((logits / 4).log_softmax(-1), (teacher.log() / 4).softmax(-1), reduction="batchmean")
        for teacher in teachers
    ]
    theirs = 0.1 * F.cross_entropy(logits, labels) + 2 * 0.9 * 16 * torch.stack(divergences).mean()
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (own, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


def test_a_step_by_hand():
    """One step of a student on one mixed batch, with autograd on a module of torch's own."""
    net, teachers = tiny_net(5, dtype=EXACT), modes(2, dtype=EXACT)
    data = [(blobs(8, dtype=EXACT).images, blobs(8).labels)]
    start = Mode.from_module(net)
    config = replace(quick(1), momentum=0.0)
    student = mb.distill(net, teachers, data, start=start, config=replace(config, mixup=0.7))
    draw = StudentObjective(net, {"s": plan_student(net, teachers, start=start)}, 3, 0.7).draw(
        8, seeds.generator(config.seed, "draws")
    )
    images = mix(data[0][0], draw["share"].double(), draw["partner"])
    with torch.no_grad():
        target = torch.stack([mode.load(net)(images).softmax(-1) for mode in teachers]).mean(0)
    net.train()
    loss = (target * (target.log() - net(images).log_softmax(-1))).sum(-1).mean()
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    lr = config.lr * config.factor(0)
    for (name, parameter), gradient in zip(net.named_parameters(), gradients, strict=True):
        torch.testing.assert_close(student.params[name], parameter - lr * gradient, rtol=1e-9, atol=1e-12)


def test_students_trained_together_are_their_own():
    net, teachers = tiny_net(0, "bn"), modes(3, "bn")
    plans = {
        "of three": plan_student(net, teachers, seed=1),
        "of two": plan_student(net, teachers[:2], seed=2, loss=PAPER_LOSS),
        "of labels": plan_student(net, (), seed=3),
        "from a mode": plan_student(net, teachers[1:], start=teachers[0]),
    }
    before = [mode.id for mode in teachers]
    together = fit_students(net, plans, loader(16), config=quick())
    for name, plan in plans.items():
        alone = fit_students(net, {name: plan}, loader(16), config=quick())[name]
        assert alone.id == together[name].id, name
    assert len({mode.id for mode in together.values()}) == 4
    assert [Mode(mode.params, mode.buffers).id for mode in teachers] == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_batch_of_one_is_skipped_if_any_student_has_batch_norm(order):
    nets = [nn.Sequential(nn.Linear(4, 6), *norm, nn.Linear(6, 3)) for norm in ([nn.BatchNorm1d(6)], [])]
    teacher, data = Vectors(), [(torch.rand(n, 4), torch.arange(n) % 3) for n in (8, 1)]
    plans = {str(k): plan_student(nets[k], [Mode.from_module(teacher)]) for k in order}
    with pytest.warns(UserWarning, match="A batch of 1 image in train is skipped"):
        students = fit_students(teacher, plans, data, config=quick(1))
    assert len(students) == 2


def test_an_ensemble_teaches_with_one_voice_per_member():
    net, teachers = tiny_net(0, dtype=EXACT), modes(3, dtype=EXACT)
    data = loader(dtype=EXACT)
    curve = mb.fit_curve(net, *teachers[:2], data, config=quick(1))
    bridge = mb.fit_bridge(net, curve, data, config=quick(1))
    plain, ensemble = mb.Ensemble(net, teachers), mb.Ensemble(net, teachers[:1], [bridge])
    wanted = mb.distill(net, teachers, data, config=quick())
    got = mb.distill(net, plain, data, config=quick())
    for name, tensor in wanted.params.items():
        torch.testing.assert_close(got.params[name], tensor, rtol=1e-9, atol=1e-12)
    images = blobs(4, dtype=EXACT).images
    objective = StudentObjective(net, {"s": plan_student(net, [ensemble, teachers[2]])}, 3, 0.0)
    target = objective.prepare((images, torch.zeros(4, dtype=torch.long)), {})["s"]["target"]
    head_logits = torch.cat([ensemble.members(images), plain.members(images)[2:]])
    torch.testing.assert_close(target, head_logits.mean(0), rtol=1e-12, atol=1e-14)


def test_a_student_of_another_architecture_learns():
    """A linear student of linear teachers can say exactly the softmax of their sum; KL falls far."""
    torch.manual_seed(0)
    net, teacher = nn.Linear(4, 3), nn.Linear(4, 3)
    data = [(torch.rand(16, 4), torch.arange(16) % 3) for _ in range(4)]
    student = nn.Sequential(nn.Linear(4, 8), nn.Identity(), nn.Linear(8, 3))
    epochs: list[mb.training.Epoch] = []
    config = quick(40, callbacks=(epochs.append,))
    learned = mb.distill(net, [Mode.from_module(teacher)], data, student=student, config=config)
    assert epochs[-1].losses["student"] < 0.02 * epochs[0].losses["student"]
    assert set(learned.params) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_averaged_weights_get_the_statistics_of_mixed_images():
    net, teachers = tiny_net(0, "bn", EXACT), modes(2, "bn", EXACT)
    data = list(loader(dtype=EXACT))  # a list, whose order does not change from pass to pass
    config = quick(3, average_from=2)
    plan = plan_student(net, teachers, seed=4)
    student = fit_students(net, {"s": plan}, data, config=config)["s"]
    generator = seeds.generator(config.seed, "mixed batches")
    batches = [(mixed(images, draw_mixing(len(labels), 1.0, 0.0, generator)), labels) for images, labels in data]
    wanted = refresh_statistics(net, student.params, student.buffers, batches)
    for name in (name for name in wanted if "running" in name):
        torch.testing.assert_close(student.buffers[name], wanted[name], rtol=1e-9, atol=1e-12)


def test_new_weights_are_new_and_no_epoch_changes_nothing():
    net = tiny_net(0, "bn")
    first, again = (plan_student(net, modes(1, "bn"), seed=1).start for _ in range(2))
    assert first.id == again.id != plan_student(net, modes(1, "bn"), seed=2).start.id
    assert not any(torch.equal(first.params[name], p) for name, p in net.named_parameters() if p.dim() > 1)
    assert mb.distill(net, modes(2, "bn"), loader(), start=first, config=quick(0)).id == first.id
    assert mb.distill(net, modes(1, "bn")[0], loader(), start=first, config=quick(0)).id == first.id
    # Frozen parameters, as those of a base under an adapter, are no weights of the student's own.
    next(iter(net.parameters())).requires_grad_(False)
    name, frozen = next(iter(net.named_parameters()))
    assert torch.equal(mb.distill(net, modes(2, "bn"), loader(), config=quick(1)).params[name], frozen)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda net: mb.distill(net, [], loader()), "Expected teachers to distill, but got none"),
        (lambda net: fit_students(net, {}, loader()), "Expected at least one student"),
        (
            lambda net: mb.distill(net, [1], loader()),
            "a mode, a module, a state dict or the path of a checkpoint, but got int",
        ),
        (lambda net: DistillationLoss(temperature=0), "temperature of distillation to be above 0"),
        (lambda net: DistillationLoss(soft=0), "not both 0"),
        (
            lambda net: mb.distill(net, modes(1), loader(), student=nn.Sequential(nn.Flatten(), nn.Linear(64, 4))),
            r"outputs of \(4,\), classes last, like the student, but one has \(3,\)",
        ),
    ],
)
def test_what_cannot_be_done_is_said(call, sentence):
    with pytest.raises(ModebridgeError, match=sentence):
        call(tiny_net())
