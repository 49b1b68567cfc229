import numpy as np
import pytest

from reports import text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(123.4e6, "123 M"), (2.4899e9, "2.49 B"), (1.5e12, "1.50 T"), (4096, "4.10 k"), (12, "12.0"), (np.nan, "–")],
)
def test_quantities_carry_three_digits_and_a_suffix(value, shown):
    assert text.quantity(value).replace(text.GAP, " ") == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.000"), (818.1, "818.1"), (0.0002726, "0.0002726"), (1.2e-7, "1.200e-07"), (5e9, "5.000e+09")],
)
def test_significant_digits_are_kept_over_all_magnitudes(value, shown):
    assert text.significant(value, 4) == shown


def test_intervals_show_two_digits_of_the_spread():
    draws = np.random.default_rng(0).normal(0.4638, 0.0167, 20_000)
    assert text.mean_and_range(draws).replace(text.GAP, " ").startswith("0.464 (90 % 0.43")
    assert text.mean_and_range(np.full(10, 2.0), "") == "2.000 (2.000 to 2.000)"


def test_probabilities_claim_no_more_than_the_draws_can_tell():
    assert text.probability(1.0, 4000) == f">{text.GAP}0.999"
    assert text.probability(0.0, 4000) == f"<{text.GAP}0.001"
    assert text.probability(1.0, 100) == f">{text.GAP}0.990"
    assert text.probability(0.973, 4000) == "0.97"
    assert text.probability(0.004, 4000) == "0.004"


def test_listings_read_as_a_phrase():
    assert [text.listing(items) for items in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
