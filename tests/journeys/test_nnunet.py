"""examples/nnunet_folds.py on tiny models and cases in the layout of nnU-Net v2, with the package of its networks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from modebridge.deploy import DeployedEnsemble

pytest.importorskip("dynamic_network_architectures")
sys.path.append(str(Path(__file__).parents[2] / "examples"))
import nnunet_folds

SIDES = 8, 12, 8
LABELS = {"background": 0, "core": 1, "edge": 2, "ignore": 3}
DATASET = {"channel_names": {"0": "T1", "1": "T2"}, "labels": LABELS, "file_ending": ".nii.gz"}
SHORT = "--epochs", "1", "--batches", "2"


def make_plans(axes=2, kind="PlainConvUNet"):
    """As nnU-Net writes them: classes by name, and a configuration that inherits from another."""
    layers = {"conv_op": f"torch.nn.modules.conv.Conv{axes}d", "dropout_op": None, "nonlin": "torch.nn.LeakyReLU"}
    layers["norm_op"] = f"torch.nn.modules.instancenorm.InstanceNorm{axes}d"
    options = {"norm_op_kwargs": {"eps": 1e-5, "affine": True}, "nonlin_kwargs": {"inplace": True}, "conv_bias": True}
    options |= {"n_stages": 2, "features_per_stage": [8, 16], "kernel_sizes": [[3] * axes] * 2, **layers}
    options |= {"strides": [[1] * axes, [2] * axes], "n_conv_per_stage_decoder": [1]}
    options["n_conv_per_stage" if kind == "PlainConvUNet" else "n_blocks_per_stage"] = [1, 1]
    name = f"dynamic_network_architectures.architectures.unet.{kind}"
    design = {"network_class_name": name, "arch_kwargs": options, "_kw_requires_import": list(layers)}
    base = {"batch_size": 2, "patch_size": SIDES[:axes], "architecture": design}
    return {"configurations": {"base": base, "small": {"inherits_from": "base", "batch_size": 3}}}


def make_model(folder, plans):
    """Two folds after a step of training, with everything that nnU-Net's trainer saves."""
    for k in range(2):
        torch.manual_seed(k)
        net = nnunet_folds.build(nnunet_folds.configuration(plans, "small"), DATASET)
        net.decoder.deep_supervision = True
        optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.99, nesterov=True)
        x = torch.rand(1, 2, *plans["configurations"]["base"]["patch_size"])
        sum(logits.square().mean() for logits in net(x)).backward()
        optimizer.step()
        given = {"plans": plans, "configuration": "small", "fold": k, "dataset_json": DATASET}
        saved = {"network_weights": net.state_dict(), "optimizer_state": optimizer.state_dict()}
        saved |= {"grad_scaler_state": None, "trainer_name": "nnUNetTrainer", "_best_ema": np.float64(0.4)}
        saved["logging"] = {"dice_per_class_or_region": [[np.float64(0.5), np.float32(0.2)]], "lrs": [0.01]}
        saved |= {"init_args": {**given, "device": torch.device("cuda")}, "current_epoch": 1}
        saved["inference_allowed_mirroring_axes"] = tuple(range(x.dim() - 2))
        (folder / f"fold_{k}").mkdir(parents=True)
        torch.save(saved, folder / f"fold_{k}" / "checkpoint_final.pth")
    (folder / "plans.json").write_text(json.dumps(plans))
    (folder / "dataset.json").write_text(json.dumps(DATASET))
    return folder


def make_cases(folder, ending="npz"):
    """Three cases, the last of them narrower than a patch, with places outside of a mask and places to ignore."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for k, width in enumerate((14, 12, 7)):
        image = random.normal(size=(2, 9, width, 10)).astype(np.float32)
        labels = np.digitize(image[:1], [0.5, 1.5, 2.5]).astype(np.int8)
        labels[:, :, :2] = -1
        if ending == "npz":
            np.savez_compressed(folder / f"case_{k}.npz", data=image, seg=labels)
        for part, array in (("", image), ("_seg", labels)) if ending != "npz" else ():
            file = f"{folder}/case_{k}{part}.{ending}"
            np.save(file, array) if ending == "npy" else pytest.importorskip("blosc2").asarray(array, urlpath=file)
    return folder


@pytest.mark.filterwarnings("ignore:Network . of", "ignore:The bridge gets a head on labels")
@pytest.mark.parametrize(("axes", "kind"), [(2, "PlainConvUNet"), (3, "ResidualEncoderUNet")])
def test_heads_on_folds(axes, kind, tmp_path, capsys):
    model, cases = make_model(tmp_path / "model", make_plans(axes, kind)), make_cases(tmp_path / "data" / "cases")
    (tmp_path / "data/splits_final.json").write_text(json.dumps([{"train": ["case_0", "case_2"], "val": ["case_1"]}]))
    nnunet_folds.main([str(model), str(cases), "--heads", "--out", str(tmp_path / "fast.onnx"), *SHORT])
    said = capsys.readouterr().out
    for text in ("fold 0 + heads  x1.", "all folds       x2.00", "all folds: mean Dice", "--test"):
        assert text in said
    file = DeployedEnsemble.load(tmp_path / "fast.onnx")
    found = file(torch.randn(3, 2, *SIDES[:axes])).probabilities
    assert found.shape == (3, 3, *SIDES[:axes])
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert file.parity < 1e-5


def test_a_distilled_fold_is_one_of_nnunet(tmp_path, capsys):
    model, new = make_model(tmp_path / "model", make_plans(kind="ResidualEncoderUNet")), tmp_path / "new"
    cases, out = str(make_cases(tmp_path / "cases", "npy")), str(tmp_path / "fast.onnx")
    nnunet_folds.main([str(model), cases, "--save-fold", str(new), "--test", cases, "--out", out, *SHORT])
    said = capsys.readouterr().out
    assert "distilled  x1.00" in said
    assert "--test" not in said
    # As nnU-Net's predictor reads it, which wants all names.
    saved = torch.load(new / "fold_0" / "checkpoint_final.pth", weights_only=True)
    plans = json.loads((new / "plans.json").read_text())
    net = nnunet_folds.build(nnunet_folds.configuration(plans, saved["init_args"]["configuration"]), DATASET)
    net.load_state_dict(saved["network_weights"])
    assert (saved["trainer_name"], saved["inference_allowed_mirroring_axes"]) == ("nnUNetTrainer", (0, 1))
    x = torch.randn(3, 2, *SIDES[:2])
    assert np.array_equal(DeployedEnsemble.load(out)(x).probabilities.argmax(axis=1), net(x).argmax(dim=1))


@pytest.mark.parametrize("ending", ["npz", "npy", "b2nd"])
def test_patches(ending, tmp_path):
    plan, cases = {"patch_size": SIDES, "batch_size": 3}, nnunet_folds.cases(make_cases(tmp_path / "cases", ending))
    patches = nnunet_folds.Patches(cases, plan, ignored=3, batches=8, seed=0)
    x, y = (torch.cat(each) for each in zip(*patches, strict=True))
    assert torch.equal(x, torch.cat([images for images, _ in patches]))
    patches.set_epoch(1)
    assert not torch.equal(x, torch.cat([images for images, _ in patches]))
    assert x.shape == (24, 2, *SIDES)
    assert y.unique().tolist() == [-1, 0, 1, 2]
    assert (y[2::3] > 0).flatten(1).any(dim=1).all()
    margins = (x == 0).all(dim=1)
    assert margins.any()
    assert (y[margins] == -1).all()


def test_what_is_refused_or_missing_is_said(tmp_path, monkeypatch):
    model, kind = make_model(tmp_path / "model", make_plans()), "dynamic_network_architectures.architectures.unet.Plain"
    for file, before, after, words in (
        ("dataset.json", '"edge": 2', '"edge": [1, 2]', "but got regions, which may overlap"),
        ("plans.json", '"batch_size": 3', '"previous_stage": "3d_lowres"', "but got a cascade"),
        ("plans.json", f"{kind}ConvUNet", "os.system", "but got 'os.system'"),
        ("plans.json", f"{kind}ConvUNet", "torch.nn.UNet", "but got 'torch.nn.UNet'"),
        ("plans.json", "nothing", "", "to hold preprocessed cases"),
    ):
        kept = (model / file).read_text()
        (model / file).write_text(kept.replace(before, after))
        with pytest.raises(SystemExit, match=words):
            nnunet_folds.main([str(model), str(tmp_path)])
        (model / file).write_text(kept)
    (model / "fold_1" / "checkpoint_final.pth").unlink()
    with pytest.raises(SystemExit, match=r"in fold_0 and other folds of .* but got fold_0; train them"):
        nnunet_folds.main([str(model), str(tmp_path)])
    monkeypatch.setitem(sys.modules, "dynamic_network_architectures", None)
    with pytest.raises(SystemExit, match="pip install dynamic-network-architectures"):
        nnunet_folds.build(nnunet_folds.configuration(make_plans(), "small"), DATASET)
