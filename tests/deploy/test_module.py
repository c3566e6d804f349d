"""One module says what the library says."""

from __future__ import annotations

import pytest
import torch

from modebridge.deploy import EnsembleModule
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from tests.deploy.scenes import ensemble, headed, images
from tests.scenarios import tiny_net


@pytest.mark.parametrize("own", [ensemble("frn"), ensemble("bn"), ensemble("bn", 1, 0, 0), headed()])
@torch.no_grad()
def test_it_says_what_the_ensemble_says(own):
    own = own.double()
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    one = EnsembleModule(own, outputs=["probabilities", "members"])
    for count in (0, 1, 5):
        batch = images(count).double()
        answer, members = one(batch)
        torch.testing.assert_close(members.transpose(0, 1), own.members(batch), rtol=0, atol=1e-10)
        torch.testing.assert_close(answer, own(batch), rtol=0, atol=1e-10)
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())


def test_the_other_mean_stays_in_the_library():
    net = tiny_net(0, "bn")
    with pytest.raises(ModebridgeError, match="the only one that files have, but its mean is logarithmic"):
        EnsembleModule(Ensemble(net, [Mode.from_module(net)], mean="logarithmic"))
