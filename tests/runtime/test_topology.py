"""The order of ranks in the network, and the labels of a node that it follows from."""

from __future__ import annotations

from bireme_runtime.elastic.rendezvous import rules


def worker(name: str, *place: str) -> rules.Member:
    return rules.Member(name, name, 0, "", 0, place=place)


def workers(text: str) -> list[rules.Member]:
    """`a1` is a worker on the switch 1 of block a; the number after a dot tells apart those on one switch."""
    return [worker(name, *name[:2]) for name in text.split()]


def order(text: str, unit: int = 1) -> str:
    return " ".join(each.id for each in rules.arranged(workers(text), unit))


def test_workers_of_a_switch_are_neighbours_and_switches_of_a_block_too() -> None:
    assert order("b2.0 a1.0 b1.0 a2.0 b2.1 a1.1") == "b2.0 b2.1 b1.0 a1.0 a1.1 a2.0"


def test_the_first_worker_stays_the_first_and_those_of_a_switch_keep_their_order() -> None:
    assert order("c1.9 a1.5 c1.2 a1.7") == "c1.9 c1.2 a1.5 a1.7"


def test_a_unit_is_on_one_switch_if_enough_are_there_and_else_in_one_block() -> None:
    assert order("a1.0 a1.1 a1.2 b1.0 a2.0 b1.1", unit=2) == "a1.0 a1.1 a1.2 a2.0 b1.0 b1.1"
    assert order("a1.0 b1.0 a2.0 b2.0", unit=2) == "a1.0 a2.0 b1.0 b2.0"
    assert order("a1.0 a1.1 a1.2 b1.0 c1.0 c1.1", unit=2) == "a1.0 a1.1 c1.0 c1.1 a1.2 b1.0"


def test_workers_whose_place_is_not_known_keep_their_order() -> None:
    some = [worker("x"), worker("y"), worker("z")]
    assert rules.arranged(some, 2) == some
    mixed = [worker("x"), worker("a", "zone", "1"), worker("y"), worker("b", "zone", "1")]
    assert [each.id for each in rules.arranged(mixed, 1)] == ["x", "y", "a", "b"]
