"""No one believes a manifest that this installation did not sign."""

from __future__ import annotations

import hmac
import json
import random
import secrets

import pytest
from pydantic import SecretStr

from fakes.shelf import JOB, Shelf
from stack import configure, private
from stack.layout import Layout
from streamops import snapshots
from streamops.model import manifest as manifests
from streamops.model.errors import SignatureError, SnapshotRefusedError, StreamOpsError
from streamops.model.signatures import Keyring, canonical
from streamops.store import keys
from streamops.store.object_store import ObjectStore


def key(name: str) -> str:
    return f"{name}:{secrets.token_hex(32)}"


def ring(*texts: str) -> Keyring:
    return Keyring.parse(",".join(texts))


@pytest.fixture
def shelf(bucket) -> Shelf:
    found = Shelf(bucket)
    found.batches(3)
    return found


def with_keys(shelf: Shelf, text: str) -> ObjectStore:
    return ObjectStore(shelf.settings.model_copy(update={"snapshot_keys": SecretStr(text)}))


def test_a_signature_covers_every_field_and_no_white_space() -> None:
    keyring = ring(key("k1"))
    fields = {"a": 1, "b": {"c": [1, 2], "d": "ü"}}
    signed = fields | {"signature": keyring.sign(fields)}
    assert keyring.problem(json.loads(json.dumps(signed, indent=3, sort_keys=True))) == ""
    for changed in ({"a": 2}, {"b": {"c": [2, 1], "d": "ü"}}, {"new": None}):
        assert keyring.problem(signed | changed) == "has a wrong signature: it was altered"
    assert "altered" in keyring.problem({name: value for name, value in signed.items() if name != "a"})
    assert canonical(signed) == canonical(fields)


def test_several_keys_are_accepted_and_the_first_signs() -> None:
    old, new = key("old"), key("new")
    fields = {"a": 1}
    by_old = fields | {"signature": ring(old).sign(fields)}
    both = ring(new, old)
    assert both.problem(by_old) == ""
    assert both.key_of(both.sign(fields)) == "new"
    assert ring(new).problem(by_old) == "is signed with a key that is not accepted here (accepted: new)"
    assert "accepted: none" in Keyring().problem(by_old)


@pytest.mark.parametrize(
    "given", [None, "", "x", "hmac-sha256", "hmac-sha256:k1", "hmac-sha256:k1:", "md5:k1:00", 7, "hmac-sha256:k1:ü"]
)
def test_what_is_no_signature_is_none(given: object) -> None:
    assert ring(key("k1")).problem({"a": 1, "signature": given})


def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    right = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or right(a, b))
    keyring = ring(key("k1"))
    assert "altered" in keyring.problem({"a": 1, "signature": "hmac-sha256:k1:" + "0" * 64})
    assert len(compared) == 1


@pytest.mark.parametrize("text", ["k1", "k1:zz", f"k1:{'0' * 62}", f"k 1:{'0' * 64}", f"k1:{'0' * 64},k1:{'1' * 64}"])
def test_a_wrong_key_list_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(SignatureError, match="SNAPSHOT_KEYS") as caught:
        Keyring.parse(text)
    assert "0000" not in str(caught.value)
    assert "0000" not in repr(ring(f"k1:{'0' * 64}"))


def test_without_a_key_nothing_is_signed_and_nothing_believed(shelf: Shelf) -> None:
    shelf.take("s")
    blind = with_keys(shelf, "")
    with pytest.raises(SnapshotRefusedError, match="accepted: none"):
        snapshots.load(blind, JOB, "s")
    shelf.store = blind
    with pytest.raises(SignatureError, match="no key to sign with"):
        shelf.export("t")


def test_after_a_rotation_old_snapshots_are_good_until_the_old_key_goes(shelf: Shelf) -> None:
    shelf.take("before")
    old, new = shelf.settings.snapshot_keys.get_secret_value(), key("k2")
    shelf.store = with_keys(shelf, f"{new},{old}")
    shelf.batches(1)
    after = shelf.take("after")
    assert after.signature.startswith("hmac-sha256:k2:")
    assert [item.name for item in snapshots.list(shelf.store, JOB)] == ["before", "after"]
    only_new = with_keys(shelf, new)
    assert [item.name for item in snapshots.list(only_new, JOB)] == ["after"]
    refused = next(entry for entry in snapshots.entries(only_new, JOB) if entry.manifest is None)
    assert (refused.name, "not accepted here (accepted: k2)" in refused.refused) == ("before", True)


def test_an_altered_manifest_is_refused_field_by_field(shelf: Shelf) -> None:
    shelf.take("s")
    where = keys.manifest(JOB, "s")
    fields = json.loads(shelf.store.get(where).body)
    assert len(fields) > 15
    for name, value in fields.items():
        other = value + 1 if isinstance(value, int) else f"{value}x" if isinstance(value, str) else [value]
        shelf.overwrite(where, json.dumps(fields | {name: other}).encode())
        with pytest.raises(SnapshotRefusedError, match=r"manifests/s.json .*nothing was touched"):
            snapshots.load(shelf.store, JOB, "s")
    item = fields["objects"][0]
    for name in item:
        objects = [{**item, name: "0" * 64}, *fields["objects"][1:]]
        shelf.overwrite(where, json.dumps(fields | {"objects": objects}).encode())
        with pytest.raises(SnapshotRefusedError, match="altered"):
            snapshots.load(shelf.store, JOB, "s")
    shelf.overwrite(where, json.dumps(fields).encode())
    assert snapshots.load(shelf.store, JOB, "s").name == "s"


def test_an_unsigned_manifest_cannot_be_committed(shelf: Shelf) -> None:
    manifest = shelf.export("s")
    for wrong in (manifest.model_copy(update={"signature": None}), manifest.model_copy(update={"version": "v9"})):
        with pytest.raises(SnapshotRefusedError):
            snapshots.commit_manifest(shelf.store, wrong)
    assert snapshots.find(shelf.store, JOB, "s") is None


def test_a_signed_manifest_with_a_path_that_leads_out_is_refused(shelf: Shelf) -> None:
    manifest = shelf.export("s")
    item = manifest.objects[0]
    for update in (
        {"path": "../../../jobs/x"}, {"path": "/a"}, {"path": "a//b"}, {"key": "jobs/sums/record.json"},
        {"key": f"snapshots/{JOB}/data/../../x"}, {"stage": "zz"}, {"size": -1},
    ):  # fmt: skip
        wrong = manifest.model_copy(update={"objects": (item.model_copy(update=update),)}).signed(shelf.store.keyring)
        with pytest.raises(SnapshotRefusedError, match="out of place"):
            snapshots.commit_manifest(shelf.store, wrong)


def test_fuzzed_manifests_are_refused_in_one_sentence(shelf: Shelf, seed: int) -> None:
    manifest = shelf.export("s")
    good = manifest.model_dump_json(indent=1).encode()
    keyring = shelf.store.keyring
    chance = random.Random(seed)
    same = json.loads(good)
    said = []
    for _ in range(3000):
        body = bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(body))
            what = chance.randrange(4)
            if what == 0:
                body[at] ^= 1 << chance.randrange(8)
            elif what == 1:
                del body[at : at + chance.choice((1, 5, 500))]
            elif what == 2:
                body[at:at] = chance.choice((b'"', b"{", b"[", b"null", b"\x00", b"1e999", b",", b"\xff"))
            else:
                end = min(len(body), at + chance.randrange(200))
                body[at:end] = body[at:end][::-1]
        try:
            found = manifests.parse(bytes(body), "s.json", keyring)
        except StreamOpsError as error:
            said.append(str(error))
        else:
            assert json.loads(found.model_dump_json()) == same  # only white space was touched
    assert len(said) > 2800
    for text in said:
        assert text.startswith("The manifest s.json ")
        assert "\n" not in text
        assert len(text) < 400


def test_drivers_and_nodes_never_get_the_key(tmp_path) -> None:
    layout = Layout(tmp_path, 0)
    pairs = private.prepare_env(layout, tmp_path / "spark")
    again = private.prepare_env(layout, tmp_path / "spark")
    assert Keyring.parse(pairs["SNAPSHOT_KEYS"]).keys
    assert pairs["SNAPSHOT_KEYS"] == again["SNAPSHOT_KEYS"]  # kept, or every snapshot would be refused
    configure.write_all(layout, pairs)
    secret = pairs["SNAPSHOT_KEYS"].split(":")[1]
    holders = {
        path.relative_to(tmp_path).as_posix()
        for path in tmp_path.rglob("*")
        if path.is_file() and secret in path.read_text()
    }
    assert holders == {layout.env_file.relative_to(tmp_path).as_posix(), "airflow/connections.json"}
    assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in holders)
