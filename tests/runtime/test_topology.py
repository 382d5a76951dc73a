"""The order of ranks in the network, and the labels of a node that it follows from."""

from __future__ import annotations

from dataclasses import dataclass

from bireme_runtime.elastic.rendezvous import topology


@dataclass(frozen=True)
class Worker:
    name: str
    place: tuple[str, ...] = ()


def workers(text: str) -> list[Worker]:
    """`a1` is a worker on the switch 1 of block a; the number after a dot tells apart those on one switch."""
    return [Worker(name, tuple(name[:2])) for name in text.split()]


def order(text: str, unit: int = 1) -> str:
    return " ".join(each.name for each in topology.arranged(workers(text), unit))


def test_workers_of_a_switch_are_neighbours_and_switches_of_a_block_too() -> None:
    assert order("b2.0 a1.0 b1.0 a2.0 b2.1 a1.1") == "b2.0 b2.1 b1.0 a1.0 a1.1 a2.0"


def test_the_first_worker_stays_the_first_and_those_of_a_switch_keep_their_order() -> None:
    assert order("c1.9 a1.5 c1.2 a1.7") == "c1.9 c1.2 a1.5 a1.7"


def test_a_unit_is_on_one_switch_if_enough_are_there_and_else_in_one_block() -> None:
    assert order("a1.0 a1.1 a1.2 b1.0 a2.0 b1.1", unit=2) == "a1.0 a1.1 a1.2 a2.0 b1.0 b1.1"
    assert order("a1.0 b1.0 a2.0 b2.0", unit=2) == "a1.0 a2.0 b1.0 b2.0"
    assert order("a1.0 a1.1 a1.2 b1.0 c1.0 c1.1", unit=2) == "a1.0 a1.1 c1.0 c1.1 a1.2 b1.0"


def test_workers_whose_place_is_not_known_keep_their_order() -> None:
    some = [Worker("x"), Worker("y"), Worker("z")]
    assert topology.arranged(some, 2) == some
    mixed = [Worker("x"), Worker("a", ("zone", "1")), Worker("y"), Worker("b", ("zone", "1"))]
    assert [each.name for each in topology.arranged(mixed, 1)] == ["x", "y", "a", "b"]
