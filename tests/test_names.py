"""The public names, those of version 0.2 that still work, and what a name that is gone says."""

import pytest

import modebridge as mb


def test_every_public_name_is_there():
    assert all(getattr(mb, name) is not None for name in mb.__all__)
    assert len(mb.__all__) <= 21
    assert set(mb.__all__) <= set(dir(mb))


@pytest.mark.parametrize("name", mb._RENAMED)
def test_old_names_work_with_a_warning(name):
    with pytest.warns(DeprecationWarning, match=f"modebridge.{name} is now modebridge.{mb._RENAMED[name]}"):
        assert getattr(mb, name) is not None


@pytest.mark.parametrize("name", mb._GONE)
def test_names_that_are_gone_say_what_to_use(name):
    with pytest.raises(AttributeError, match=r"of version 0\.2 is gone; use "):
        getattr(mb, name)


def test_other_names_are_errors_as_usual():
    with pytest.raises(AttributeError, match=r"module 'modebridge' has no attribute 'fit_heads'; did .* fit_bridge\?"):
        mb.fit_heads  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute '__nothing__'$"):
        mb.__nothing__  # noqa: B018
