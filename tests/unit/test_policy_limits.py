"""A bundle holds no more policies than a batch has time for, wherever it comes from."""

import pytest

from fencepost.authority.compiled import Compiled, InvalidBundle
from fencepost.authority.inforce import Engines, Unusable
from fencepost.authority.statements import MAX_POLICIES, MAX_TEXT
from tests.unit.policies_app import bundle


def named(count: int, words: str = "") -> str:
    return "\n".join(
        f'@id("p{n}") @note("{words}") permit (principal, action in Action::"tools", resource);'
        for n in range(count)
    )


def test_as_many_as_may_be_compile() -> None:
    assert len(Compiled(bundle(named(MAX_POLICIES))).statements) == MAX_POLICIES
    spaced = named(2) + "\n" + "// a remark is no policy\n" * (MAX_TEXT // 25) + named(1).replace("p0", "p2")
    assert len(Compiled(bundle(spaced)).statements) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (named(MAX_POLICIES + 1), f"there are {MAX_POLICIES + 1} policies of"),
        (named(10, "x" * (MAX_TEXT // 10)), f"a bundle holds at most {MAX_POLICIES} of {MAX_TEXT}"),
    ],
)
def test_more_are_refused_in_one_sentence_and_never_decide(text: str, said: str) -> None:
    with pytest.raises(InvalidBundle) as refused:
        Compiled(bundle(text))
    (problem,) = refused.value.problems
    assert said in problem
    assert "let one policy speak of a role" in problem
    published = Engines().add(1, bundle(text).pack())  # by hand, past every check
    assert isinstance(published, Unusable)
    assert said in published.why
