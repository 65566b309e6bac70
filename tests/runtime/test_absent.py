"""The module that Arrow looks for: found wherever it is on the path, and searched once where it is not."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import BuiltinImporter, ModuleSpec, PathFinder
from pathlib import Path

import pytest
from udo_runtime.absent import Absent


def test_the_path_is_searched_again_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched, find = list[str](), PathFinder.find_spec

    def counted(name: str, *more: object) -> object:
        searched.append(name)
        return find(name)

    monkeypatch.setattr(PathFinder, "find_spec", counted)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "dateutil", raising=False)
    for _ in range(3):
        with pytest.raises(ModuleNotFoundError, match="No module named 'dateutil'"):
            importlib.import_module("dateutil")
    assert searched == ["dateutil"]
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"):
        importlib.import_module("no_such_module")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "dateutil.py").write_text("found = 7")
    sys.path.append(str(tmp_path / "later"))
    assert importlib.import_module("dateutil").found == 7
    del sys.modules["dateutil"]


def test_what_another_finder_finds_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            return ModuleSpec(name, BuiltinImporter, origin="own") if name == "dateutil" else None

    monkeypatch.setattr(sys, "path", [])
    absent = Absent()
    monkeypatch.setattr(sys, "meta_path", [absent, *sys.meta_path])
    with pytest.raises(ModuleNotFoundError):
        absent.find_spec("dateutil")
    sys.meta_path.append(Own())  # type: ignore[arg-type]
    assert absent.find_spec("dateutil") is None
    monkeypatch.delitem(sys.modules, "dateutil", raising=False)
    found = importlib.util.find_spec("dateutil")
    assert found is not None and found.origin == "own"
