"""Every error a person can hint is one line with the hint, and has its exit status."""

import pickle

import pytest

from amptui.base import errors


@pytest.mark.parametrize(("kind", "status"), [(errors.UsageError, 2), (errors.DataError, 1)])
def test_an_error_says_what_and_how_to_mend_it(kind: type[errors.AmptuiError], status: int) -> None:
    error = kind("no model file x.py", hint="check the path")
    assert str(error) == "no model file x.py; check the path"
    assert (error.what, error.hint, error.exit_status) == ("no model file x.py", "check the path", status)
    assert str(kind("no model file x.py")) == "no model file x.py"


def test_every_error_is_in_the_tree_that_the_docstring_draws() -> None:
    drawn = [word for word in (errors.__doc__ or "").split() if word.endswith("Error")]
    kinds = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, errors.AmptuiError)]
    assert drawn == [kind.__name__ for kind in kinds]


def test_an_error_of_a_loader_s_worker_process_comes_back_readable() -> None:
    error = pickle.loads(pickle.dumps(errors.DataError("file cut off", hint="download it again")))  # noqa: S301
    assert str(error).startswith("file cut off; download it again")
