"""Verdicts on published versions: which fingerprints count, what is refused, and what a step reports."""

from __future__ import annotations

import pytest

from fakes.rig import SUM, definition
from streamops.model import records
from streamops.model.errors import RefusedError
from streamops.versions import verdicts
from streamops.versions.artifacts import ArtifactManifest
from streamops.versions.fingerprints import Fingerprint, Key, Window


def version(name: str, stages: dict[str, Fingerprint | None]) -> ArtifactManifest:
    return ArtifactManifest(
        job="sums", version=name, artifact_sha256=name, runtime_sha256="r", size=1,
        definition=definition(name, tuple(stages)), published=records.now(),
        fingerprints={stage: item.model_dump(mode="json") for stage, item in stages.items() if item},
    )  # fmt: skip


def shaped(seconds: int) -> Fingerprint:
    size = seconds * 1_000_000
    key = Key(text=str(size), type="w", window=Window(kind="tumbling", time="events.n", size_us=size, slide_us=size))
    return SUM.model_copy(update={"operators": (SUM.operators[0].model_copy(update={"keys": (key,)}),)})


def test_an_upgrade_that_only_adds_needs_no_yes_and_says_a_verdict_for_every_stage() -> None:
    said: list[str] = []
    old, new = version("v1", {"a": SUM}), version("v2", {"a": SUM, "b": SUM})
    facts = verdicts.require(verdicts.of_deployment(old, {}, new, {}), (), said.append)
    assert facts["outcomes"] == {"a": "kept", "b": "starts empty"}
    assert facts["empty"] == []
    assert said[0].startswith("Verdict on a: kept.")
    assert said[1].startswith("Verdict on b: starts empty. b is new in sums v2.")


def test_what_would_be_lost_is_refused_until_every_stage_is_named() -> None:
    old, new = version("v1", {"a": SUM, "b": SUM, "c": None}), version("v2", {"a": SUM, "c": SUM})
    found = verdicts.of_deployment(old, {}, new, {})
    with pytest.raises(RefusedError, match=r"Stage c: unknown.*Stage b: dropped.*accept_loss: c, b"):
        verdicts.require(found, ())
    with pytest.raises(RefusedError, match="accept_loss: c"):
        verdicts.require(found, ("b",))
    assert verdicts.require(found, ("b", "c"))["outcomes"] == {"a": "kept", "b": "dropped", "c": "unknown"}


def test_incompatible_state_is_refused_with_what_to_do_and_no_yes_helps() -> None:
    old = version("v1", {"a": SUM})
    new = version("v2", {"a": SUM.model_copy(update={"operators": ()})})
    with pytest.raises(RefusedError, match=r"Stage a is incompatible: .*Give the changed stage another name"):
        verdicts.require(verdicts.of_deployment(old, {}, new, {}), ("a",))


def test_a_window_of_another_size_is_reported_as_one_whose_state_is_left_behind() -> None:
    found = verdicts.of_deployment(version("v1", {"a": shaped(10)}), {}, version("v2", {"a": shaped(20)}), {})
    with pytest.raises(RefusedError, match="10 seconds became a tumbling window of 20 seconds"):
        verdicts.require(found, ())
    assert verdicts.require(found, ("a",))["empty"] == ["a"]


def test_a_param_set_at_deploy_makes_the_fingerprint_of_its_stages_invalid() -> None:
    sized = SUM.model_copy(update={"params": ("size",)})
    old, new = version("v1", {"a": sized, "b": SUM}), version("v2", {"a": sized, "b": SUM})
    outcomes = {item.stage: item.outcome for item in verdicts.of_deployment(old, {"size": 11}, new, {"size": 11})}
    assert outcomes == {"a": "unknown", "b": "kept"}
    assert set(verdicts.stored(old, {"size": 11})) == {"b"}
    same = verdicts.of_deployment(old, {"size": 10}, new, {"size": 10})  # as the definition has it
    assert {item.outcome for item in same} == {"kept"}
