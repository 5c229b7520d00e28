"""Output that cannot be written: work goes on, with one note."""

import os
import subprocess
import sys

import pytest

from casa.runtime.output import Sturdy

CODE = """
import os, sys
from casa.runtime.output import open_standard_streams, sturdy_console
open_standard_streams()
console = sturdy_console()
for line in range(50):
    console.print("line", line, "[/red]", markup=False)
os.write(int(sys.argv[1]), b"done")
"""


@pytest.mark.parametrize("how", ["closed pipe", "full disk", "closed", "all closed"])
def test_a_lost_output_is_one_note_and_status_0(how):
    told, tell = os.pipe()
    read, pipe = os.pipe()
    os.close(read)
    out = {"closed pipe": pipe, "full disk": os.open("/dev/full", os.O_WRONLY)}.get(how, subprocess.DEVNULL)
    shell = {"closed": " >&-", "all closed": " <&- >&- 2>&-"}.get(how, "")
    argv = ["sh", "-c", f'exec "{sys.executable}" -c "$0" {tell}{shell}', CODE]
    done = subprocess.run(argv, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, pass_fds=[tell])
    assert done.returncode == 0
    assert os.read(told, 100) == b"done"
    assert done.stderr.count("\n") == (1 if "closed pipe" in how or "disk" in how else 0), done.stderr
    if done.stderr:
        assert done.stderr.startswith("casa: the output is lost (") and done.stderr.endswith("); the work goes on\n")


def test_what_can_be_written_is_written(capsys):
    stream = Sturdy(sys.stdout)
    assert stream.write("text") == 4
    stream.flush()
    assert capsys.readouterr() == ("text", "") and stream.encoding == sys.stdout.encoding
