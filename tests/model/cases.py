"""Named scopes. The small ones run with every test and name the rules whose absence they notice; the large ones only by a command."""

from __future__ import annotations

from tests.model.scope import Case
from tests.model.state import Budget

ONE, TWICE, BOTH, LANES = ((0,),), ((0, 0),), ((0, 1),), ((0,), (1,))

SMALL = (
    Case("quiet", BOTH, Budget(), "no fault, two epochs", epochs=2),
    Case(
        "crash",
        BOTH,
        Budget(crash=1, partial=1),
        "an instance dies at any step",
        catches=("whole_step", "checkpoint_bound", "riding_answer"),
    ),
    Case(
        "crash-fail",
        TWICE,
        Budget(crash=1, partial=1, fail=1),
        "an instance dies and an attempt fails",
        catches=("undo_in_checkpoint",),
    ),
    Case(
        "promotion",
        BOTH,
        Budget(standby=1, promote=1, crash=1),
        "a standby is promoted at any step, the former owner goes on or dies",
        catches=("standby_limit", "emit_once"),
    ),
    Case(
        "lagging",
        BOTH,
        Budget(standby=1, promote=1, partial=2),
        "a standby stays behind while the owner checkpoints and trims",
        catches=("reload", "old_checkpoint"),
    ),
    Case("fail", BOTH, Budget(fail=1), "an attempt fails and lives on as a zombie", epochs=2, catches=("n_per_attempt",)),
    Case("twin", TWICE, Budget(twin=1), "two attempts at once, Spark takes either", epochs=2, catches=("candidate", "ended_only")),
    Case("rerun", TWICE, Budget(rerun=1), "the stage runs again after END", epochs=2, catches=("undo_after_end",)),
    Case(
        "restart",
        TWICE,
        Budget(restart=1),
        "the driver restarts at any step, even when only the commit was missing",
        epochs=2,
        catches=("run_in_label", "runs_in_start_order"),
    ),
    Case("other-rows", BOTH, Budget(fail=1), "a retry brings other rows", retry_rows=((0, 0),), catches=("end_labels_groups",)),
    Case("repartition", LANES, Budget(restart=1), "fewer partitions after a restart", restart_rows=((0, 1),)),
    Case("busy", BOTH, Budget(busy=1), "the log is full for one frame while the next is on its way", catches=("gap",)),
    Case(
        "queue-loss",
        BOTH,
        Budget(queue_loss=1, partial=1),
        "the queue server is lost, its last owner still writes a checkpoint",
        catches=("fence", "incarnation"),
    ),
    Case(
        "twin-loss",
        TWICE,
        Budget(queue_loss=1, partial=1, twin=1),
        "the queue server is lost; an older attempt has not begun yet",
        catches=("stale_label",),
    ),
    Case(
        "state-crash",
        BOTH,
        Budget(state_crash=1, partial=1),
        "the state server restarts without what was not on disk",
        catches=("durable_end", "durable_trim", "state_run_id"),
    ),
    Case(
        "servers",
        ONE,
        Budget(state_crash=1, queue_loss=1, partial=1, crash=1),
        "both servers and an instance",
        catches=("flush_before_reply",),
    ),
    Case(
        "error",
        ONE,
        Budget(error=1, crash=1, partial=1, twin=1),
        "the operator throws, for one attempt or one instance only",
        catches=("failed_in_checkpoint",),
    ),
    Case("lanes", LANES, Budget(crash=1, fail=1), "two partitions on one slot"),
)

LARGE = (
    Case("promotion-fail", BOTH, Budget(crash=1, standby=1, promote=1, partial=1, fail=1), "promotion, crash and zombies"),
    Case("promotion-3", ONE, Budget(crash=1, standby=1, promote=1, partial=2, queue_loss=1), "three instances", epochs=2, instances=3),
    Case("crash-twin", TWICE, Budget(twin=1, crash=1, partial=1), "twins and a crash", epochs=2),
    Case("crash-restart", TWICE, Budget(restart=1, fail=1, crash=1, partial=1), "restart, zombies and a crash", epochs=2),
    Case("crash-rerun", BOTH, Budget(fail=1, restart=1, rerun=1, crash=1, partial=1), "all with other rows", retry_rows=((0, 0),)),
    Case("loss-rerun", TWICE, Budget(queue_loss=1, twin=1, rerun=1, partial=1), "queue loss, twins, stage re-run", epochs=2),
    Case("loss-restarts", ONE, Budget(restart=2, fail=1, twin=1, queue_loss=1, partial=1), "queue loss and two restarts", epochs=2),
    Case("loss-lanes", LANES, Budget(queue_loss=1, partial=1, twin=1), "queue loss with two partitions"),
    Case("loss-repartition", LANES, Budget(restart=1, queue_loss=1, partial=1, fail=1), "and fewer partitions", restart_rows=((0, 1),)),
    Case(
        "servers-promotion",
        ONE,
        Budget(crash=1, standby=1, promote=1, partial=1, queue_loss=2, state_crash=1),
        "all servers, all instances",
    ),
    Case(
        "servers-window",
        TWICE,
        Budget(crash=1, standby=1, promote=1, partial=1, queue_loss=1, state_crash=1),
        "answers held back",
        window=2,
    ),
    Case("error-restart", ONE, Budget(error=2, crash=1, partial=1, restart=1), "errors, a crash and a restart", epochs=2),
    Case("lanes-restart", LANES, Budget(twin=1, restart=1), "two partitions, twins and a restart"),
    Case(
        "everything", ONE, Budget(twin=1, rerun=1, restart=1, queue_loss=1, partial=1, crash=1), "all of Spark and a queue loss", epochs=2
    ),
)

CASES = {case.name: case for case in (*SMALL, *LARGE)}
