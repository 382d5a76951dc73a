"""What the analysis must find in each script of with_torch/faults.py."""

from __future__ import annotations

# What each script does on which rank, and the words that tell where.
FAULTS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "stuck_in_the_loader": ("data", (2,), "is in __getitem__ (train.py:30)"),
    "stuck_in_a_lock": ("script", (1,), "is in stuck_in_a_lock"),
    "stuck_in_a_queue": ("lock", (3,), "is in stuck_in_a_queue"),
    "stuck_in_a_checkpoint": ("checkpoint", (0,), "is in stuck_in_a_checkpoint"),
    "stuck_in_user_code": ("script", (1,), "is in evaluate_for_ever"),
    "stuck_in_a_pipe": ("script", (2,), "is in stuck_in_a_pipe"),
    "a_collective_is_left_out": ("mismatch", (3,), "left out all_reduce 5"),
    "one_collective_more": ("mismatch", (1,), "of 11 Float at train.py:92"),
    "only_the_first_rank_reduces_its_loss": ("mismatch", (0,), "made one collective more"),
    "another_shape": ("mismatch", (2,), "of 7 Float"),
    "another_type": ("mismatch", (1,), "of 4 Double"),
    "another_collective": ("mismatch", (3,), "made broadcast 4"),
    "another_order": ("mismatch", (2,), "of 9 Float"),
    "a_barrier_that_others_do_not_make": ("mismatch", (0,), "made barrier 4"),
    "an_early_end": ("missing", (2,), "told nothing"),
    "an_exception_that_is_swallowed": ("script", (1,), "is in wait_for_the_next_epoch"),
    "a_stopped_process": ("held", (1,), "is in state T (stopped)"),
    "a_group_without_one_rank": ("script", (3,), "of group 1"),
    "two_groups_in_two_orders": ("deadlock", (0, 1, 2, 3), "ranks wait for each other"),
    "nothing_is_sent": ("script", (0,), "is in nothing_is_sent"),
    "a_skipped_step_after_nan": ("script", (2,), "is in wait_for_the_next_epoch"),
    "all_wait_for_storage": ("script", (), "all ranks are in read_shard"),
    "one_rank_is_slow": ("script", (3,), "is in compute_much"),
    "a_deep_call": ("script", (0,), "is in wait_in_a_callback"),
}
# Of a process that has ended or is stopped there is no line.
WITHOUT_A_LINE = {"an_early_end", "a_stopped_process"}
# Groups of these ranks are of four, so that more ranks would make another fault.
GROUPED = {"a_group_without_one_rank", "two_groups_in_two_orders"}
