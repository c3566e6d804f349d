"""A soup of aligned modes: one network, the mean of their weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from modebridge import trees
from modebridge.alignment import find_groups
from modebridge.data import Loader
from modebridge.members import ModeMember, SoupMember, base_epochs, parse_member
from modebridge.members.mode_member import AlignedMode
from modebridge.members.soup_member import SoupWeights, soup
from modebridge.modes import Mode, refresh_statistics
from modebridge.nets import run as run_at
from modebridge.scoring import align
from tests.alignment.renumbering import renumbered
from tests.members.methods_run import finished
from tests.runs.damaging import tiny
from tests.scenarios import EXACT, blobs, modes, tiny_net


@pytest.mark.parametrize("norm", [pytest.param("frn", marks=pytest.mark.slow), "bn"])
def test_renumbered_copies_of_one_network_give_it_back(norm: str) -> None:
    net, data = tiny_net(0, norm, EXACT), Loader(blobs(dtype=EXACT), 8)  # the same batches every time
    images = blobs(dtype=EXACT).images
    (mode,) = modes(1, norm, EXACT)
    if norm == "bn":  # statistics that are those of the training images, as a soup gets them
        mode = Mode(mode.params, refresh_statistics(net, mode.params, mode.buffers, data))
    groups = find_groups(net, images[:4])
    copies = [renumbered(mode, groups, seed) for seed in (1, 2)]
    assert all(trees.fingerprint(copy.params) != trees.fingerprint(mode.params) for copy in copies)
    aligned = [align(net, mode, copy, data, barriers=False).mode for copy in copies]
    made = soup(net, [mode, *aligned], data)
    logits = [run_at(net.eval(), one.params, one.buffers, images) for one in (made, mode)]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-10)
    stirred = soup(net, [mode, *copies], data)  # not aligned: another function
    assert float((run_at(net, stirred.params, stirred.buffers, images) - logits[1]).abs().max()) > 1e-3


@pytest.mark.slow
def test_a_soup_of_a_run_is_the_mean_of_its_aligned_modes() -> None:
    """In a recipe that does not align its modes; they stay as they are."""
    run, _ = finished()
    made = run.load(SoupMember(2)).networks["soup-2"]
    artefacts = SoupWeights(2).parents(run.recipe)
    assert [artefact.place for artefact in artefacts] == ["modes/0", "aligned/1"]
    first, second = run.tensors(artefacts).values()
    for name, tensor in made.params.items():
        torch.testing.assert_close(tensor, (first[name] + second[name]) / 2, rtol=1e-6, atol=1e-7)
    fresh = refresh_statistics(
        run.context.net, made.params, run.mode(0).buffers, run.context.data.statistics("soups", "2")
    )
    for name, tensor in fresh.items():
        torch.testing.assert_close(made.buffers[name], tensor)
    assert run.mode(1).id != Mode.from_state_dict(run.context.net, second).id, "mode 1 itself is not renumbered"
    assert base_epochs([SoupMember(2)], run.context) == 2 * 3
    assert SoupMember(2).cost(run.context) == ModeMember(0).cost(run.context)


def test_its_name_and_the_way_of_matching() -> None:
    recipe = replace(tiny(), align="weights", methods=("soup",))
    assert [member.name for member in SoupMember.of(recipe)] == ["soup-2"]
    assert parse_member("soup-3") == SoupMember(3)
    assert not SoupMember(3).belongs(recipe), "there are two modes"
    # One artefact with the modes that the run itself aligns.
    assert SoupWeights(2).parents(recipe)[1] == AlignedMode(1, "weights") == ModeMember(1).artefacts(recipe)[0]
    assert SoupWeights(2).parents(tiny())[1] == AlignedMode(1, "activations")
