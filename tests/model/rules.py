"""The rules of the protocol, each with its reason. Without a rule the model shows what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace


def rule(why: str) -> bool:
    """A rule that is needed for safety, on by default."""
    return field(default=True, metadata={"why": why})


def _extra(why: str) -> bool:
    return field(default=True, metadata={"why": why, "extra": True})


@dataclass(frozen=True)
class Rules:
    """All on: the protocol as built. A field's `why` is the reason for the rule."""

    # The log
    gap: bool = rule("A frame behind a refused one is refused too; else the refused one is taken for a duplicate later.")
    n_per_attempt: bool = rule("Frames are numbered anew by each attempt; else a retry's frames pass for those of the failed attempt.")
    standby_limit: bool = rule("A standby never reads past `emitted`; else the answers it threw away are missing once it is promoted.")
    fence: bool = rule("Only the newest token may answer, checkpoint or trim; a former owner must not overwrite what came after it.")
    emit_once: bool = rule(
        "The queue server refuses answers at or before `emitted`; an instance may hold some that were emitted meanwhile."
    )
    reload: bool = rule("A cursor before the base means frames were trimmed: their effect is in the checkpoint and nowhere else.")
    # Labels and groups
    run_in_label: bool = rule("Labels start with the run: a restarted driver counts its attempts from 0 again.")
    runs_in_start_order: bool = rule(
        "Runs are numbered as they started; a zombie of an old run may be seen after the new run, and would win."
    )
    stale_label: bool = rule("A frame older than its group's label changes nothing; else a zombie adds to the newer attempt's values.")
    undo_after_end: bool = rule("Undo outlives END; the stage may run again, or the epoch be replayed, after all of it was answered.")
    candidate: bool = rule("ENDed values outlive a newer attempt's touch; Spark may have taken the older attempt's answers.")
    ended_only: bool = rule("The next epoch never starts from values that were not ENDed; their attempt may be half done for ever.")
    end_labels_groups: bool = rule(
        "END labels all groups of its lane; those without a frame may still hold what a failed attempt left there."
    )
    # Durable state
    failed_in_checkpoint: bool = rule("Lanes with an error are stored too; else END makes half an attempt complete for the next instance.")
    undo_in_checkpoint: bool = rule(
        "Undo is stored with the values; a checkpoint in mid-epoch may be all that is left when the attempt fails."
    )
    whole_step: bool = rule("Values and the sequence number they cover are stored in one step; else a crash between them repeats frames.")
    checkpoint_bound: bool = rule("No checkpoint past `emitted` except with the answers riding in it; else nobody can give them any more.")
    old_checkpoint: bool = rule(
        "No checkpoint before the stored one; values of groups that did not change since would not go back with it."
    )
    riding_answer: bool = rule("END's answer rides in the checkpoint that covers END; else it is lost with the instance.")
    durable_end: bool = rule("END is answered only when its checkpoint is on disk; Spark does not come back for an epoch it committed.")
    durable_trim: bool = rule("Frames are trimmed only when their checkpoint is on disk; else neither server has them.")
    flush_before_reply: bool = rule("The state server tells nobody what is not on disk; a riding answer may be read before it is safe.")
    state_run_id: bool = rule("Who sees the state server restarted starts again; changes it took for stored may be gone.")
    incarnation: bool = rule("A checkpoint names the queue server it counts frames of; the log of a new one starts at 1.")
    # Not needed for safety: shown to be unnecessary, kept because refusing early is cheap.
    stale_at_push: bool = _extra("A push older than the newest label of its partition is refused at once: saves the work.")
    old_runs_stale: bool = _extra("Frames of an older run than the session has seen are refused without looking at groups.")

    def without(self, name: str) -> Rules:
        """The same rules with one off."""
        return replace(self, **{name: False})


WHY = {f.name: str(f.metadata["why"]) for f in fields(Rules)}
SAFETY = tuple(f.name for f in fields(Rules) if "extra" not in f.metadata)
EXTRA = tuple(f.name for f in fields(Rules) if "extra" in f.metadata)
