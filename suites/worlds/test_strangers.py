"""Strangers get in nowhere: not at a world's door, and not by what they plant in its place."""

import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from disteval import HarnessError, WorldError
from disteval.world import World, detect_outer_world, follow
from disteval.world.attached import meeting_place

from suites.helpers.strangers import PLANTED, Disturbed, control_folder, visit

SECONDS = 60


@pytest.mark.parametrize("over_network", [False, True], ids=["unix", "tcp"])
def test_strangers_neither_come_in_nor_keep_a_rank_out(over_network: bool) -> None:
    launcher = Disturbed(over_network)
    with World("non_dist", 1, launcher=launcher) as world:
        assert world.run(lambda backend: backend.world_size) == [1]
        with pytest.raises(ConnectionRefusedError):  # it listens until all ranks are there
            visit(launcher.place)
    family = socket.AF_INET if over_network else socket.AF_UNIX
    assert {stranger.family for stranger in launcher.strangers} == {family}
    for stranger in launcher.strangers:
        with stranger:
            try:
                while stranger.recv(1 << 16):  # the leader's nonce and proof, at most
                    pass
            except ConnectionResetError:
                pass


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))
    for name, value in {"PMI_RANK": "1", "PMI_SIZE": "2", "PMIX_NAMESPACE": "a job"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.mark.parametrize("place", ["folder", "directory"])
@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_not_private_is_refused_by_leaders_and_ranks(
    plant: Callable[[Path], None], place: str, shared: Path
) -> None:
    outer = detect_outer_world()
    assert outer is not None
    planted = meeting_place(outer)
    if place == "folder":
        planted = control_folder(shared)
    else:
        control_folder(shared).mkdir(mode=0o700)
    plant(planted)
    begin = time.monotonic()
    for take_part in (follow, World.lead):
        with pytest.raises(WorldError) as caught:
            take_part(outer)
        for word in (str(planted), PLANTED[plant], "DISTEVAL_CONTROL_DIR"):
            assert word in str(caught.value)
    assert time.monotonic() - begin < SECONDS / 2


def test_a_folder_in_which_others_can_rename_is_refused(shared: Path) -> None:
    shared.chmod(0o777)
    with pytest.raises(WorldError, match=str(shared)):
        World("threads", 1, launcher="threads")
    shared.chmod(0o1777)
    World("threads", 1, launcher="threads").close()


def test_the_folders_of_a_world_are_for_its_user_alone(shared: Path) -> None:
    with World("threads", 1, launcher="threads"):
        found = [path for path in shared.rglob("*") if path.is_dir()]
        assert len(found) > 1
        assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o700}


def test_a_job_that_is_led_already_is_led_once(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    outer = detect_outer_world()
    assert outer is not None
    with World.lead(outer) as world:
        with pytest.raises(HarnessError, match=meeting_place(outer).name):
            World.lead(outer)
        assert world.run(lambda _: "led") == ["led"]
