import io

import numpy as np
import pytest
from tests.support.made_films import continuous_film, made_film
from tests.support.runs import run

from casa.cli import main
from casa.errors import UserError
from casa.watch.files import write_gif, write_html, write_mp4
from casa.watch.film import compress, needs
from casa.watch.panel import BLUE, ORANGE, Panel

Image = pytest.importorskip("PIL.Image")
ffmpeg = pytest.importorskip("imageio_ffmpeg")


def has(picture, colour):
    return (np.asarray(picture) == colour).all(-1).any()


def test_the_video_has_every_step_at_the_environments_speed(tmp_path):
    film = made_film()
    path = write_mp4(film, tmp_path / "a.mp4", range(len(film.moments)))
    frames, seconds = ffmpeg.count_frames_and_secs(str(path))
    assert frames == len(film.moments) and seconds == pytest.approx(frames / 20, abs=0.1)
    assert [file.name for file in tmp_path.iterdir()] == ["a.mp4"]


def test_a_panel_shows_the_frame_and_what_the_agent_has():
    whole, no_q, no_pi = (made_film(), made_film(q=False), made_film(pi=False))
    for film, blue, orange in ((whole, True, True), (no_q, True, False), (no_pi, False, True)):
        picture = Panel(film).draw(5)
        assert all(x % 2 == 0 for x in picture.size)
        assert (has(picture, BLUE), has(picture, ORANGE)) == (blue, orange)
        assert has(picture, (250, 80, 40)), "the ball"
    assert not has(Panel(whole).draw(30), BLUE), "after the end there is no policy"


def test_a_film_without_frames_and_one_with_many_actions_can_be_drawn(tmp_path):
    film = made_film(frames=False)
    assert film.frames == [] and has(Panel(film).draw(3), BLUE)
    for count in (18, 100):
        names = [f"action {i}" for i in range(count)]
        assert write_gif(made_film(names=names, options=count), tmp_path / "a.gif", range(3)).exists()


def test_a_film_keeps_its_last_frame_where_rendering_stops():
    film = made_film(count=3)
    film.add(film.moments[0])
    assert len(film.frames) == len(film.moments) == 5 and film.frames[4] == film.frames[3]
    late = made_film(count=3, frames=False)
    late.add(late.moments[0]._replace(frame=np.zeros((4, 4, 3), np.uint8)))
    assert late.frames == []


def test_continuous_parts_are_curves_with_the_action_in_them():
    film = continuous_film()
    panel = Panel(film)
    assert has(panel.draw(3), BLUE) and has(panel.draw(3), ORANGE)
    assert panel.draw(3).tobytes() != panel.draw(9).tobytes()
    part = film.cast.parts[0]
    assert (part.chosen(0), part.chosen(5), part.chosen(7.5), part.chosen(10)) == ("-2", "0", "1", "2")


def test_the_gif_is_endless_and_as_fast_as_the_film(tmp_path):
    gif = Image.open(write_gif(made_film(), tmp_path / "a.gif", range(12)))
    assert gif.is_animated and gif.n_frames == 12 and gif.info["loop"] == 0 and gif.info["duration"] == 50


def test_drawings_are_kept_to_the_pixel_and_photos_are_kept_small():
    drawing = np.zeros((210, 160, 3), np.uint8)
    drawing[50:60] = (200, 72, 72)
    assert (np.asarray(Image.open(io.BytesIO(compress(drawing))).convert("RGB")) == drawing).all()
    assert len(compress(drawing)) < 500
    photo = np.random.default_rng(0).integers(0, 255, (900, 1200, 3)).astype(np.uint8)
    assert Image.open(io.BytesIO(compress(photo))).size == (640, 480)


def test_the_player_is_one_file_without_markup_from_the_film(tmp_path):
    hostile = "</script><script>alert(1)</script>"
    text = write_html(made_film(title=hostile, names=(hostile, "b", "c")), tmp_path / "a.html").read_text("utf-8")
    assert text.count("<script") == 2 and "alert(1)</script>" not in text


def test_a_missing_extra_is_one_sentence():
    with pytest.raises(UserError, match=r"needs nothing_here: pip install 'casa-rl\[watch\]'"):
        needs("nothing_here.Image")


def test_the_command_writes_all_three_and_live_needs_a_terminal(tmp_path, capsys):
    path = run("casa", tmp_path / "run", steps=80)
    assert main(["watch", str(path), "--steps", "12", "--policy", "greedy", "--seed", "3"]) == 0
    written = sorted(file.name for file in (path / "videos").iterdir())
    step = written[0].split("-")[1]
    assert written == [f"step-{step}-greedy-seed-3.{ending}" for ending in ("gif", "html", "mp4")]
    out = capsys.readouterr().out
    assert "the last episode" in out and str(path / "videos") in out
    assert main(["report", str(path)]) == 0
    assert "data:video/mp4" in (path / "report.html").read_text("utf-8")
    capsys.readouterr()
    for wrong, words in (
        (["--live"], "draws in a terminal"),
        (["--checkpoint", "7"], "step 7"),
        (["--tau", "-1"], "tau must be"),
        (["--steps", "-1"], "steps must be >= 0"),
    ):
        assert main(["watch", str(path), *wrong]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and words in error, error


@pytest.mark.parametrize("ending", ["mp4", "gif", "html"])
def test_links_are_not_written_through(tmp_path, ending):
    """A run directory may come from a stranger: a link in it must not lead to a file of the user's."""
    victim = tmp_path / "thesis.tex"
    victim.write_text("years of work")
    path = tmp_path / f"a.{ending}"
    path.symlink_to(victim)
    (tmp_path / f".tmp-a.{ending}").symlink_to(victim)
    film = made_film()
    makers = {
        "mp4": lambda: write_mp4(film, path, range(3)),
        "gif": lambda: write_gif(film, path, range(3)),
        "html": lambda: write_html(film, path),
    }
    makers[ending]()
    assert victim.read_text() == "years of work" and path.is_file() and not path.is_symlink()
