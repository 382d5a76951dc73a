"""Progress of a training script: the steps that it prints, or tells by one call.

    from bireme_runtime.elastic import progress
    progress.step(number, loss, total=900)  # after each step. Outside a worker it does nothing
    progress.checkpoint()  # after each checkpoint
    progress.save_wanted()  # whether newcomers wait for the next one
    with progress.saving(): ...  # while a checkpoint is written: nobody resizes the job meanwhile

The throughput of all workers together is what scripts print as `samples_per_second: NUMBER`, as JSON or not.

A step is new when its number is higher than all before it in the run. Lines of different forms (an epoch, a
step, a step of an epoch) are compared only with their own form.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from bireme_runtime.process import environment
from bireme_runtime.process.page import Page, Word

BOARD = "BIREME_PROGRESS"
# `step 12`, `"step": 12`, `iter 12/9`, `Epoch: [3][ 12/900]`, `epoch 3, step 12`, `epoch 3`. Counts of the
# whole run come first: `global_step=12` (Lightning), `num_updates=12` (fairseq). Then bars without a name, of
# tqdm (Hugging Face's Trainer) and Keras, which count only beside bars of the same total. `Epoch(train)` is
# MMEngine's, the wide space that of Megatron-LM. `--save-step 12` and `every step 12` are no steps.
DEFAULT_PATTERN = (
    r"(?i)^.*?\b(?:global[_ ]?step|num_updates)\W{1,4}(\d+)"
    r"|^\s*(?:\d+%\|[^|]{0,80}\|\s*)?(\d+)/(?P<form>\d+) (?:\[|━)"
    r"|\bepoch(?:\(train\))?\W{1,6}(\d+)(?::\s*\d+%\|[^|]{0,80}\|\s*(\d+)/|\W{1,6}(\d+)\s*/"
    r"|\D{1,40}?\b(?:step|iter(?:ation)?|batch)\W{1,4}(\d+))"
    r"|(?<![\w-])(?<!every )(?:steps(?=: \d+ loss)|step|iter(?:ation)?)(?:\(train\))?\W{1,12}(\d+)"
    r"|\bepoch\W{1,4}(\d+)"
)
# Colours, and options of a script, which a shell with `set -x` repeats or argparse shows.
_COLOUR, _OPTIONS = re.compile(rb"\x1b\[[0-9;]*m"), re.compile(rb"\++ |.*\bNamespace\(")
# Longer numbers are no steps, and no float has room for them.
_MOST_DIGITS = 18
_BAD_GRADIENT = re.compile(rb"(?i)grad(?:ient)?[ _]?norm\W{1,4}(?:nan\b|inf(?:inity)?\b)")
# The loss, in a pattern without a group of that name.
_LOSS = re.compile(rb"(?i)(?<![a-z])loss\W{1,4}(?:tensor\()?(?P<loss>nan\b|inf(?:inity)?\b|\d)")
_SAMPLES = re.compile(rb"samples_per_second\W{1,4}(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_NO_NUMBER = re.compile(rb"(?i)\W?(?:nan|inf)")
_LONGEST_BYTES = 2000
# Newcomers that were not asked about for so long have gone.
_FORGET_SECONDS = 10.0
# The first ones of a start are slow.
_FEWEST_SAMPLES = 5
_SLOTS, _SLOT = 120, struct.Struct("@qdd")
_SAVED = _SLOTS * _SLOT.size
_PASSED = _SAVED + 8
_SAVING = _PASSED + 8
_WANTED = _SAVING + _SLOTS
_TOTAL = _WANTED + 16

Marks = dict[str, list[int]]


class StepBoard(Page):
    """One page that the processes of a worker share: the latest step of each local rank, and when it was.

    With it stands how often in a row the loss was NaN or infinite.
    """

    NAME = "bireme-progress"

    saved: Word[float] = Word("@d", _SAVED)
    """When the last checkpoint was committed, by time.monotonic; 0 if none was told."""
    passed: Word[bool] = Word("@?", _PASSED)
    """Whether this worker has passed its preflight with others."""
    total: Word[int] = Word("@q", _TOTAL)
    """With how many steps the run is over; 0 if nobody has told."""

    def write(self, slot: int, number: int, loss: float = 0.0) -> None:
        """The process with this local rank has done a step, with this loss."""
        if 0 <= slot < _SLOTS:
            at = slot * _SLOT.size
            bad = 0.0 if math.isfinite(loss) else _SLOT.unpack_from(self.memory, at)[2] + 1
            _SLOT.pack_into(self.memory, at, number, time.monotonic(), bad)

    def steps(self) -> dict[int, tuple[int, float]]:
        """The latest step, and when it was by time.monotonic, of each local rank that has told one."""
        return {slot: (number, when) for slot, (number, when, _) in enumerate(self._slots()) if when}

    @property
    def bad(self) -> int:
        """How often in a row a process has told a loss that is NaN or infinite; the most of all."""
        return int(max(bad for _, _, bad in self._slots()))

    def _slots(self) -> list[tuple[int, float, float]]:
        return [_SLOT.unpack_from(self.memory, slot * _SLOT.size) for slot in range(_SLOTS)]

    def save(self) -> None:
        """A checkpoint has been committed."""
        self.saved = time.monotonic()

    def want_save(self, since: float, now: float) -> None:
        """Newcomers wait for a checkpoint, ``since`` then and still now, by time.monotonic."""
        struct.pack_into("@dd", self.memory, _WANTED, since, now)

    @property
    def save_wanted(self) -> bool:
        """Whether newcomers wait for a checkpoint that has not been made since they came."""
        since, asked = struct.unpack_from("@dd", self.memory, _WANTED)
        return bool(self.saved < since and time.monotonic() - asked <= _FORGET_SECONDS)

    @property
    def saving(self) -> bool:
        """Whether a process of this worker writes a checkpoint now."""
        return any(self.memory[_SAVING : _SAVING + _SLOTS])

    def mark_saving(self, slot: int, value: bool) -> None:
        """The process with this local rank begins or ends to write a checkpoint."""
        if 0 <= slot < _SLOTS:
            self.memory[_SAVING + slot] = int(value)

    def clear(self) -> None:
        """The processes start anew."""
        self.memory[: _SLOTS * _SLOT.size] = bytes(_SLOTS * _SLOT.size)
        self.memory[_SAVING : _SAVING + _SLOTS] = bytes(_SLOTS)


_board: StepBoard | None = None


def step(number: float, loss: float = 0.0, total: float = 0) -> None:
    """Tell the worker that this process has done this step of the run, with which loss, and of how many."""
    if board := _open_board():
        board.write(_slot(), int(number), float(loss))
        if total:
            board.total = int(total)


def checkpoint() -> None:
    """Tell the worker that a checkpoint has just been committed: newcomers may join now."""
    if board := _open_board():
        board.save()


def save_wanted() -> bool:
    """Whether newcomers wait for the next checkpoint, with `join: checkpoint`. Only rank 0's worker knows."""
    board = _open_board()
    return board is not None and board.save_wanted


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Tell the worker that this process writes a checkpoint while the block runs."""
    board = _open_board()
    if not board:
        yield
        return
    board.mark_saving(_slot(), True)
    try:
        yield
    finally:
        board.mark_saving(_slot(), False)


def _slot() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _open_board() -> StepBoard | None:
    global _board
    if _board is None and BOARD in os.environ:
        with contextlib.suppress(OSError):
            _board = StepBoard.at(os.environ[BOARD])
    return _board


class Moment:
    """A good moment for newcomers: right after a checkpoint, or when they have waited for ``seconds``."""

    def __init__(
        self, board: StepBoard | None, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._board, self._seconds, self._clock = board, seconds, clock
        self._since = self._asked = 0.0

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Moment:
        """As the supervisor has set it: at once, unless newcomers join at checkpoints."""
        if env.get("BIREME_JOIN") != "checkpoint" or BOARD not in env:
            return cls(None, 0.0)
        return cls(StepBoard.at(env[BOARD]), environment.seconds(env, "BIREME_JOIN_WAIT_SECONDS", 1800))

    def is_now(self) -> bool:
        """Whether newcomers, who wait now, may interrupt the training. Asked often while they wait."""
        now = self._clock()
        if now - self._asked > _FORGET_SECONDS:
            self._since = now
        self._asked = now
        if self._board is None:
            return True
        self._board.want_save(self._since, now)
        return self._board.saved >= self._since or now - self._since >= self._seconds


class Pace:
    """The seconds that a step takes, and whether that has doubled.

    Medians are compared, so that a pause for a checkpoint or an evaluation does not count, and only of worlds
    of one size.
    """

    _PIECE_SECONDS, _WARM_UP, _RECENT, _LEARNT, _KEPT = 3.0, 2, 20, 50, 500

    def __init__(self) -> None:
        self._known: dict[int, deque[float]] = {}
        self._world = self._skip = 0
        self._from: tuple[list[int], float] | None = None

    def start(self, world: int) -> None:
        """The processes of a world of this size start."""
        self._world, self._skip, self._from = world, self._WARM_UP, None

    def saw(self, numbers: list[int], when: float) -> None:
        """This step has ended."""
        before, since = self._from or (numbers, when)
        steps = numbers[-1] - before[-1] if numbers[:-1] == before[:-1] else -1
        if steps > 0 and when - since < self._PIECE_SECONDS:
            return
        if steps > 0:
            if not self._skip:
                self._known.setdefault(self._world, deque(maxlen=self._KEPT)).append((when - since) / steps)
            self._skip = max(0, self._skip - 1)
        if steps or self._from is None:
            self._from = (numbers, when)

    def doubled(self) -> tuple[float, float] | None:
        """The seconds of a step until now, and those of the last ones if they are more than twice as many.

        Then all is learnt anew.
        """
        known = list(self._known.get(self._world, ()))
        if len(known) < self._LEARNT + self._RECENT:
            return None
        old, new = _median(known[: -self._RECENT]), _median(known[-self._RECENT :])
        if new <= 2 * old:
            return None
        del self._known[self._world]
        return old, new


def _median(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


class Progress:
    """The highest steps that this worker has seen.

    ``pattern`` finds them in lines. Its groups are numbers of the step, but for the groups `loss`, `total`
    (of how many steps) and `form`, by which steps are told apart. Raises re.error if it cannot be used. Steps
    whose loss or gradient is NaN or infinite are not new.
    """

    def __init__(self, pattern: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._pattern = re.compile((pattern or DEFAULT_PATTERN).encode())
        index = self._pattern.groupindex
        self._loss, self._form, self._total = (index.get(name, 0) for name in ("loss", "form", "total"))
        self._apart = {self._loss, self._form, self._total} - {0}
        if self._pattern.groups <= len(self._apart):
            raise re.error("the pattern has no group for the number of the step")
        self._clock = clock
        self.marks: Marks = {}
        self.board = StepBoard.new()
        self.since = clock()
        self.last = 0.0
        self.longest = 0.0
        # Of this start: when the first step was, and which; the latest one.
        self.first: tuple[float, int] | None = None
        self.number = 0
        self.lost_steps = 0
        self.lost_seconds = 0.0
        self._lost_before = (0, 0.0)
        self.pace = Pace()
        self._bad = 0
        self._newest = ""
        self._rises: deque[tuple[float, int]] = deque(maxlen=50)
        self._rose = self._began = 0.0
        self._again: Marks | None = None
        # The throughput that this start has printed.
        self._samples: deque[float] = deque(maxlen=20)

    def start(self, known: Mapping[str, list[int]] | None = None, world: int = 1) -> None:
        """The processes start anew. ``known``: the highest steps of the run until now, by all workers."""
        self.look()
        self.board.clear()
        self.since, self.last, self.first = self._clock(), 0.0, None
        self._rises.clear()
        self._samples.clear()
        self._bad = 0
        self.pace.start(world)
        self._lost_before = (self.lost_steps, self.lost_seconds)
        self._again = {
            form: list(numbers) for form, numbers in merged(known or {}, self.marks).items()
        } or None

    def take(self, line: bytes) -> None:
        """Look for a step and a loss in a line."""
        line = _COLOUR.sub(b"", line[:_LONGEST_BYTES])
        found = None if _OPTIONS.match(line) else self._pattern.search(line)
        loss = (found if self._loss else _LOSS.search(line)) if self._loss or b"oss" in line.lower() else None
        if loss and loss["loss"]:
            is_bad = _NO_NUMBER.match(loss["loss"]) or _BAD_GRADIENT.search(line)
            self._bad = self._bad + 1 if is_bad else 0
        if found:
            texts = [
                (at, text) for at, text in enumerate(found.groups()) if text and at + 1 not in self._apart
            ]
            groups = [at for at, _ in texts]
            numbers = [int(text) for _, text in texts if text.isdigit() and len(text) <= _MOST_DIGITS]
            of = f"/{found[self._form].decode(errors='replace')}" if self._form and found[self._form] else ""
            if self._total and found[self._total]:
                self.board.total = int(found[self._total][:_MOST_DIGITS])
            if numbers:
                self._seen("".join(map(str, groups)) + of, numbers, self._clock())
        if b"samples_per_second" in line and (told := _SAMPLES.search(line)):
            self._samples.append(float(told[1]))

    def look(self) -> Marks:
        """The highest steps until now, also those that scripts have told by a call."""
        for number, when in self.board.steps().values():
            self._seen("told", [number], when)
        return self.marks

    @property
    def bad_losses(self) -> int:
        """How often in a row the loss was NaN or infinite until now."""
        return max(self._bad, self.board.bad)

    @property
    def step(self) -> int | None:
        """The highest step, of the form in which the last new one was; None before the first."""
        return self.marks[self._newest][-1] if self._newest else None

    @property
    def lost(self) -> dict[str, float]:
        """The steps that are made again in this start, and the seconds until there was a new one."""
        steps, seconds = self._lost_before
        return {"lostSteps": self.lost_steps - steps, "lostSeconds": round(self.lost_seconds - seconds, 1)}

    @property
    def goodput(self) -> float | None:
        """The part of the time since the first new step that went into new steps; None before that."""
        past = self._clock() - self._began
        return (
            max(0.0, (self._rose - self._began - self.lost_seconds) / past)
            if self._began < self._rose
            else None
        )

    @property
    def rate(self) -> float:
        """Steps per second, by the last new steps of this start; 0 if there are too few."""
        if len(self._rises) < 2 or self._rises[-1][0] <= self._rises[0][0]:
            return 0.0
        (began, first), (ended, last) = self._rises[0], self._rises[-1]
        return max(0.0, (last - first) / (ended - began))

    @property
    def seconds_left(self) -> float | None:
        """The estimated seconds until the last step; None where the total or the rate is not known."""
        left = self.board.total - (self.step or 0)
        return max(0, left) / self.rate if self.board.total and self.rate else None

    @property
    def samples_per_second(self) -> float:
        """The median of the throughputs that this start has printed last; 0 before the fifth."""
        return _median(list(self._samples)) if len(self._samples) >= _FEWEST_SAMPLES else 0.0

    def _seen(self, form: str, numbers: list[int], now: float) -> None:
        if self.last:
            self.longest = max(self.longest, now - self.last)
        self.last = max(self.last, now)
        if self._again and form in self._again:
            before = self._again.pop(form)
            if form == (self._newest or form) and before[:-1] == numbers[:-1]:
                # What was trained since the checkpoint is trained again.
                self.lost_steps += max(0, before[-1] - numbers[-1])
        if not self.bad_losses and raise_mark(self.marks, form, numbers):
            if self._again is not None and self._rose:
                self.lost_seconds += now - self._rose
            if form != self._newest:
                self.first = None
            self._again, self._newest, self._rose = None, form, now
            self._began = self._began or now
            self._rises.append((now, numbers[-1]))
        if form == (self._newest or form):
            self.first = self.first or (now, numbers[-1])
            self.number = numbers[-1]
            self.pace.saw(numbers, now)


def raise_mark(marks: Marks, form: str, numbers: list[int]) -> bool:
    """Raise the mark of one form to these numbers, if they are higher."""
    if form in marks and marks[form] >= numbers:
        return False
    marks[form] = numbers
    return True


def merged(known: Mapping[str, list[int]], more: Mapping[str, list[int]]) -> Marks:
    """The highest marks of both."""
    marks = dict(known)
    for form, numbers in more.items():
        raise_mark(marks, form, numbers)
    return marks
