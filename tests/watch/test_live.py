import io

import numpy as np
from rich.console import Console
from tests.support.made_films import continuous_film, made_cast, made_moments

from casa.watch.live import HalfBlocks, show_live, shrink


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=110, height=30)


def test_the_terminal_shows_frame_bars_and_value():
    console = terminal()
    last = show_live(console, made_cast(), made_moments(3), speed=1000)
    text = console.file.getvalue()
    assert last.over == "terminated"
    assert "▀" in text and "▸right" in text and "π" in text and "█" in text
    assert "38;2;16;56;88;48;2;16;56;88" in text, "the field's colour, in steps of 8"


def test_without_frames_or_q_it_shows_the_rest():
    console = terminal()
    show_live(console, made_cast(), made_moments(2, frames=False, q=False), speed=1000)
    assert "▀" not in console.file.getvalue() and "left" in console.file.getvalue()


def test_a_continuous_part_is_one_row():
    film = continuous_film(parts=3)
    console = terminal()
    show_live(console, film.cast, film.moments[:2], speed=1000)
    part, moment = film.cast.parts[1], film.moments[1]
    assert f"{part.name} {part.chosen(moment.action[1])}" in console.file.getvalue()
    assert "▁" in console.file.getvalue() and "█" in console.file.getvalue()


def test_two_pixels_of_a_cell_are_its_two_halves():
    frame = np.zeros((4, 2, 3), np.uint8)
    frame[1] = 248
    console = terminal()
    console.print(HalfBlocks(frame, columns=10, rows=10))
    first = console.file.getvalue().splitlines()[0]
    assert "38;2;0;0;0;48;2;248;248;248m▀▀" in first


def test_shrinking_takes_the_mean():
    frame = np.zeros((6, 4, 3), np.uint8)
    frame[:3, :2] = 80
    assert shrink(frame, 2, 2)[..., 0].tolist() == [[80, 0], [0, 0]]
    assert shrink(frame, 1, 1)[..., 0].tolist() == [[16]]  # 20, in steps of 8
