"""Probes: answers by solvers that see the text alone, the same bytes for ever, chance, difficulty, tokenizers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest

from bayeslaw.errors import UsageError
from bayeslaw.evaluations import AXES
from trainer.data.tokenizer import ByteTokenizer, load_tokenizer, trained
from trainer.evaluation.probes import EXAMPLES, PROBES, probe

ASSIGNMENTS = [name for name in PROBES if name.startswith("assignment")]
DIGESTS = {
    "induction": "f45bfeb939580955",
    "assignment_d0_math": "2bb7b2de075e6143",
    "assignment_d0_code": "a250874139f2d593",
    "assignment_d1_math": "ebb4be047c8b8716",
    "assignment_d1_code": "ceb8f26f7ea22c32",
    "dyck": "594917a1b572d479",
    "words": "fce041131f16e0a1",
}


def question(example):
    """The last line of all that is read."""
    return "".join(example.context).rsplit("\n", 1)[-1]


def solve_induction(text):
    *pairs, key = text.split(", ")
    return " " + dict(pair.split(" ") for pair in pairs)[key]


def solve_assignment(text):
    *said, asked = re.findall(r"([a-z]) ?= ?(\w+|$)", text)
    known, (name, nothing) = dict(said), asked
    assert len(known) == len(said)
    assert nothing == ""
    while name in known:
        name = known[name]
    return (" " if text.endswith(" =") else "") + name


def solve_dyck(text):
    brackets = re.fullmatch(r"Sequence: ([][(){}<> ]+) Rest:", text)[1].split(" ")
    pairs, stack = dict(["()", "[]", "{}", "<>"]), []
    for bracket in brackets:
        if bracket in pairs:
            stack.append(bracket)
        else:
            assert pairs[stack.pop()] == bracket
    return "".join(f" {pairs[bracket]}" for bracket in stack[::-1])


NUMBER = r"(?P<n>\d+)"
MEANINGS = [
    (rf"(?P<who>\w+) has {NUMBER} (?P<what>\w+)", lambda _, n: n),
    (rf"(?P<who>\w+) (buys|finds) {NUMBER} more", lambda has, n: has["who"] + n),
    (rf"(?P<who>\w+) loses {NUMBER} of them", lambda has, n: has["who"] - n),
    (rf"(?P<who>\w+) gives {NUMBER} of them away", lambda has, n: has["who"] - n),
    (rf"(?P<who>\w+) trades each of them for {NUMBER} new ones", lambda has, n: has["who"] * n),
    (rf"(?P<who>\w+) has {NUMBER} more (?P<what>\w+) than (?P<than>\w+)", lambda has, n: has["than"] + n),
    (rf"(?P<who>\w+) has {NUMBER} fewer (?P<what>\w+) than (?P<than>\w+)", lambda has, n: has["than"] - n),
    (rf"(?P<who>\w+) has {NUMBER} times as many (?P<what>\w+) as (?P<than>\w+)", lambda has, n: has["than"] * n),
]


def solve_words(text):
    """Every sentence read by itself: who has how many after it."""
    *story, last = text.split(". ")
    owned, things = {}, set()
    for sentence in story:
        [(found, rule)] = [(m, rule) for pattern, rule in MEANINGS if (m := re.fullmatch(pattern, sentence))]
        groups = found.groupdict()
        has = {role: owned.get(groups.get(role)) for role in ("who", "than")}
        owned[groups["who"]] = rule(has, int(groups["n"]))
        assert owned[groups["who"]] >= 0
        things |= {groups["what"]} if "what" in groups else set()
    asked = re.fullmatch(r"How many (\w+) does (\w+) have\? Answer:", last)
    assert things == {asked[1]}
    return f" {owned[asked[2]]}"


SOLVERS = {
    "induction": solve_induction,
    "dyck": solve_dyck,
    "words": solve_words,
    **dict.fromkeys(ASSIGNMENTS, solve_assignment),
}


@pytest.mark.parametrize("name", PROBES)
def test_a_solver_that_sees_the_text_alone_finds_every_answer(name):
    allowed = PROBES[name].allowed
    for difficulty in allowed:
        count = 2000 if difficulty in (PROBES[name].difficulty, allowed[0]) else 20
        task = probe(name, difficulty=difficulty, examples=count, shots=2, seed=difficulty)
        wrong = [each for each in task.examples if SOLVERS[name](question(each)) != each.answer]
        assert not wrong, wrong[0]
        for shot in task.examples[0].context[:2]:
            asked, answer = re.fullmatch(r"(.*)( \w{3})\n" if name == "induction" else r"(.*[:=])(.+)\n", shot).groups()
            assert SOLVERS[name](asked) == answer


@pytest.mark.parametrize("name", PROBES)
def test_defaults(name):
    made, task = PROBES[name], probe(name)
    assert (task.name, task.axis, task.shots) == (name, made.axis, made.shots)
    assert task.axis in AXES
    assert task.record["settings"] == {"seed": 0, "difficulty": made.difficulty, "version": 1}
    assert len(task.examples) == EXAMPLES == 1000
    assert len({each.context[:-1] for each in task.examples}) == 1  # the same shots
    shots = task.examples[0].context[:-1]
    assert len(set(shots)) == made.shots
    questions = [each.context[-1] for each in task.examples]
    assert len(set(questions)) == EXAMPLES
    assert not any(shot.startswith(text) for shot in shots for text in questions)
    for each in task.examples:
        text = "".join((*each.context, each.answer))
        assert text.isascii()
        assert not each.context[-1].endswith(" ")
        assert "\n" not in each.context[-1] + each.answer
        assert len(each.choices) == 1


def test_same_bytes_in_every_process():
    """The digests are kept here: a change of theirs is a change of VERSION."""
    code = (
        "import json; from trainer.evaluation.probes import *; print(json.dumps({n: probe(n).digest for n in PROBES}))"
    )
    found = [
        json.loads(subprocess.check_output([sys.executable, "-c", code], text=True, env={**os.environ, **more}))
        for more in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "7", "LC_ALL": "C", "TZ": "Asia/Tokyo"})
    ]
    assert found == [DIGESTS, DIGESTS]
    assert {name: probe(name).digest for name in PROBES} == DIGESTS


@pytest.mark.parametrize("name", PROBES)
def test_what_the_examples_depend_on(name):
    task = probe(name, examples=50)
    assert task.examples == probe(name, examples=60).examples[:50]
    assert len({task.digest, *(probe(name, examples=50, seed=seed).digest for seed in (1, 2))}) == 3
    other = next(each for each in PROBES[name].allowed if each != PROBES[name].difficulty)
    assert probe(name, examples=50, difficulty=other).digest != task.digest
    bare = probe(name, examples=50, shots=0)
    assert [len(each.context) for each in bare.examples] == [1] * 50
    assert [each.context[-1] for each in bare.examples] == [each.context[-1] for each in task.examples]


def test_probes_of_one_kind_are_drawn_apart():
    texts = [[re.sub(r"\W", "", each.context[-1]) for each in probe(name).examples] for name in ASSIGNMENTS]
    assert len({text for each in texts for text in each}) == sum(map(len, texts))


def test_questions_come_again_only_when_all_have_come():
    """One letter and one number: 650 questions, less five that are shots."""
    counts = Counter(
        each.context[-1] + each.answer for each in probe("assignment_d0_math", difficulty=1, examples=2000).examples
    )
    assert 640 <= len(counts) <= 645
    assert set(counts.values()) <= {2, 3, 4}
    for shot in probe("assignment_d0_math", difficulty=1).examples[0].context[:-1]:
        assert shot.rstrip("\n") not in counts


def near(hits, count, chance):
    """Within four standard errors of chance."""
    return abs(hits / count - chance) < 4 * (chance * (1 - chance) / count) ** 0.5


@pytest.mark.parametrize("name", [*ASSIGNMENTS, "induction"])
def test_a_guesser_by_place_gets_what_chance_gives(name):
    task = probe(name, examples=4000)
    size = PROBES[name].difficulty
    places = Counter()
    for each in task.examples:
        values = (
            re.findall(r" ([a-z]{3}),", question(each)) if name == "induction" else re.findall(r"\d+", question(each))
        )
        assert len(set(values)) == len(values) == size  # the answer stands there once, to be copied
        places[values.index(each.answer.strip())] += 1
    assert all(near(places[place], 4000, 1 / size) for place in range(size)), places


@pytest.mark.parametrize("name", [each for each in ASSIGNMENTS if "d1" in each])
def test_the_place_of_an_alias_says_nothing_of_its_variable(name):
    same = 0
    for each in probe(name, examples=4000).examples:
        *said, asked = re.findall(r"([a-z]) ?= ?(\w*)", question(each))
        bases, aliases = said[:5], said[5:]
        assert sorted(value for _, value in aliases) == sorted(letter for letter, _ in bases)  # one alias a base
        place = [letter for letter, _ in aliases].index(asked[0])  # and an alias is asked
        same += bases[place][1] == each.answer.strip()
    assert near(same, 4000, 0.2)


@pytest.mark.parametrize("name", PROBES)
def test_no_answer_is_frequent(name):
    for difficulty in {PROBES[name].difficulty, *PROBES[name].allowed[:4]}:
        answers = Counter(each.answer for each in probe(name, difficulty=difficulty).examples)
        assert answers.most_common(1)[0][1] < (0.07 if difficulty == PROBES[name].difficulty else 0.15) * EXAMPLES


def test_closing_brackets_are_of_all_kinds_alike():
    answers = [each.answer.split() for each in probe("dyck", examples=4000).examples]
    first = Counter(answer[0] for answer in answers)
    assert all(near(first[bracket], 4000, 0.25) for bracket in ")]}>")
    lengths = Counter(map(len, answers))
    assert all(near(lengths[length], 4000, 0.2) for length in range(1, 6))


def test_brackets_cannot_be_closed_by_the_last_one_alone():
    """What stands last is often closed itself, and pairs lie in one another."""
    texts = [question(each) for each in probe("dyck").examples]
    ends_open = sum(text.split()[-2] in "([{<" for text in texts)
    assert 0.3 < ends_open / EXAMPLES < 0.7
    nested = sum(bool(re.search(r"[)>}\]] [)>}\]]", text)) for text in texts)
    assert nested > EXAMPLES / 2


def test_more_difficulty_is_more_to_do():
    def texts(name, difficulty, examples=400):
        task = probe(name, difficulty=difficulty, examples=examples, shots=0)
        return [question(each) for each in task.examples], [each.answer for each in task.examples]

    for pairs in PROBES["induction"].allowed:
        assert texts("induction", pairs, 1)[0][0].count(", ") == pairs
    for name in ASSIGNMENTS:
        for variables in PROBES[name].allowed:
            letters = set(re.findall(r"[a-z]", texts(name, variables, 1)[0][0]))
            assert len(letters) == variables * (2 if "d1" in name else 1)
    closed = []
    for most in (2, 4, 8, 16, 32):
        asked, answers = texts("dyck", most)
        assert all(len(re.findall(r"[])}>]", text)) == most for text in asked)
        closed.append(sum(len(answer.split()) for answer in answers))
    assert all(more > 1.5 * fewer for fewer, more in pairwise(closed))
    levels = []
    for level in PROBES["words"].allowed:
        asked, _ = texts("words", level)
        numbers = [int(number) for text in asked for number in re.findall(r"\d+", text)]
        [steps] = {text.count(". ") - 1 for text in asked}
        levels.append((steps, max(numbers)))
    assert levels == [(1, 10), (1, 100), (2, 100), (2, pytest.approx(1000, abs=20))]


def test_every_sentence_of_the_word_problems_comes():
    asked = " ".join(question(each) for each in probe("words").examples)
    for words in ("buys", "finds", " more .* than", "loses", "gives", "fewer", "trades", "times as many"):
        assert len(re.findall(words.replace(".*", r"\w+"), asked)) > 60


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    pytest.importorskip("tokenizers")
    tasks = [probe(name, seed=3, examples=200) for name in PROBES]
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    path.write_bytes(trained(("".join((*each.context, each.answer)) for task in tasks for each in task.examples), 2000))
    return load_tokenizer(str(path))


@pytest.mark.parametrize("name", PROBES)
def test_parts_and_answer_are_tokens_of_their_own(name, bpe):
    """A text's tokens are those of its parts, one after the other: nothing joins over an edge, in any example."""
    for each in probe(name, examples=300, shots=3).examples:
        parts = [*each.context, each.answer]
        for tokenizer in (ByteTokenizer(), bpe):
            [whole], alone = tokenizer.encode(["".join(parts)]), tokenizer.encode(parts)
            assert whole.tolist() == [token for part in alone for token in part.tolist()]
            assert len(alone[-1]) > 0


def test_a_bpe_has_whole_answers(bpe):
    for name in ("assignment_d1_code", "assignment_d1_math"):
        answers = bpe.encode([each.answer for each in probe(name).examples])
        assert {len(ids) for ids in answers} == {1}  # " 22" with its space, "22" without


def test_wrong_input():
    with pytest.raises(UsageError, match="the nearest is induction"):
        probe("inductoin")
    with pytest.raises(UsageError, match="the nearest is assignment_d1_math"):
        probe("assignment_d1_maths")
    for difficulty in (0, -1, 129, 8.0, True, "8"):
        with pytest.raises(UsageError, match=r"of the probe induction\n  allowed: a whole number: pairs, 1 to 128"):
            probe("induction", difficulty=difficulty)
    with pytest.raises(UsageError, match="1 to 13"):
        probe("assignment_d1_code", difficulty=14)
    for shots in (-1, 33, 2.0):
        with pytest.raises(UsageError, match=rf"shots = {shots}\n  allowed: a whole number: 0 to 32"):
            probe("dyck", shots=shots)
    for examples in (0, 1.5, True):
        with pytest.raises(UsageError, match="examples"):
            probe("words", examples=examples)
    with pytest.raises(UsageError, match="seed"):
        probe("words", seed=-1)
