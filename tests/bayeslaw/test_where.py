import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayeslaw.errors import UsageError
from bayeslaw.where import filter_runs

FRAME = pd.DataFrame(
    {
        "recurrences": [1, 2, 4, 8],
        "budget": [1e18, 2.15e18, 1e18, np.nan],
        "recipe": ["baseline", "baseline", "hyper", None],
        "n_once": [10, 20, 30, 40],
        "n_shared": [40, 30, 20, 10],
    }
)


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("recurrences in (2,4) and budget >= 1e18 and recipe == 'baseline'", [1]),
        ("recurrences > 1", [1, 2, 3]),
        ("2 <= recurrences < 8", [1, 2]),
        ("1 < recurrences", [1, 2, 3]),
        ("not recurrences > 1", [0]),
        ("recipe == 'hyper' or recurrences == 1", [0, 2]),
        ("recurrences not in [1, 2]", [2, 3]),
        ("recipe in ('hyper', 'other')", [2]),
        ("recipe in ()", []),
        ("'hyper' == recipe", [2]),
        ("n_once < n_shared", [0, 1]),
        ("recurrences > -1", [0, 1, 2, 3]),
        ("  (recurrences == 8)  ", [3]),
        # A comparison with a missing value is false, its negation true.
        ("budget != 1e18", [1]),
        ("recipe not in ('hyper',)", [0, 1]),
        ("recipe != 'hyper'", [0, 1]),
        ("not budget == 1e18", [1, 3]),
        ("budget < 1" + "0" * 400, [0, 1, 2]),
    ],
)
def test_filters(where, kept):
    mask = filter_runs(FRAME, where)
    assert mask.dtype == bool
    assert list(np.flatnonzero(mask)) == kept


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("", "leave --where out"),
        ("recurrences = 2", "write =="),
        ("recurrences >", "cannot be read"),
        ("budgt > 1", "'budgt' is no column, did you mean budget"),
        ("recipe == baseline", "'baseline' is no column"),
        ("recipe > 'a'", "orders texts"),
        ("recipe == 1", "compares a number with a text"),
        ("recurrences == '2'", "compares a number with a text"),
        ("recurrences in 2", "'2' is no list"),
        ("recurrences in (2, n_once)", "'n_once' is neither"),
        ("recurrences", "is not a comparison"),
        ("2 > 1", "compares no column"),
        ("(recurrences > 1) & (budget > 1)", "write and / or"),
        ("recurrences is 2", "operator"),
        ("recurrences == True", "'True' is neither"),
        ("recurrences + 1 > 2", "compares no column"),
        ("budget > recurrences * 2", r"'recurrences \* 2' is neither"),
        ("__import__('os').system('true') == 0", "compares no column"),
        ("recurrences == __import__('os').getpid()", r"getpid\(\)\" is neither"),
        ("recipe.upper() == 'A' and recurrences > 1", "compares no column"),
        ("[r for r in (1,)]", "is not a comparison"),
        ("recipe == f'{recurrences}'", "is neither"),
        ("recipe == b'x'", "is neither"),
        ("\0", "cannot be read"),
        ("(" * 5000 + "recurrences > 1" + ")" * 5000, "cannot be read"),
        ("not " * 3000 + "recurrences > 1", "cannot be read"),
    ],
)
def test_errors_name_the_bad_part(where, named):
    with pytest.raises(UsageError, match=named) as error:
        filter_runs(FRAME, where)
    assert error.value.exit_code == 2
    assert error.value.allowed


def test_an_unknown_column_lists_the_known_ones():
    with pytest.raises(UsageError) as error:
        filter_runs(FRAME, "seed > 1")
    assert error.value.allowed == "recurrences, budget, recipe, n_once, n_shared"


@given(st.text(alphabet="recurncs budgt<>=!andornotin()'0123456789.,", max_size=40))
def test_any_text_is_either_a_mask_or_a_usage_error(where):
    try:
        mask = filter_runs(FRAME, where)
    except UsageError:
        return
    assert mask.shape == (4,)
    assert mask.dtype == bool


@given(st.integers(1, 8), st.integers(1, 8))
def test_chained_comparisons_are_conjunctions(low, high):
    chained = filter_runs(FRAME, f"{low} <= recurrences <= {high}")
    joined = filter_runs(FRAME, f"recurrences >= {low} and recurrences <= {high}")
    assert (chained == joined).all()


def test_nullable_columns():
    frame = pd.DataFrame({"seed": pd.array([1, None, 3], dtype="Int64")})
    assert list(filter_runs(frame, "seed >= 1")) == [True, False, True]
