"""Wrong usage: one line on standard error that names the way out, exit code 2, no output and no file.

tests/golden/messages.txt has the words of common mistakes. Names in other encodings are refused, too, or work.
"""

import json
import os
import shlex
from pathlib import Path

import pytest

import chorale as ch
from chorale.job.record import CallCount, CallKey, Record, record_bytes
from chorale.runners.simulated.calibration import Calibration
from chorale.synth.schedule.codec import from_json_text
from chorale.tuner.files.schedule_files import load_topology
from tests.command import chorale
from tests.dumps import nvswitch_machine
from tests.links import topology_document

REFUSED = """
synth bfb ring:4 ring:5 | give at most one METHOD and one SPEC, not bfb ring:4 ring:5
synth bfb torus:9999999x9999999 | torus
synth bfb ring:4 --workers 0 | at least one worker
synth bfb torus:3x3 --size 0 | a size must be between 1 byte and 1 TiB
synth torus:4x4 allreduce | write `chorale synth torus:4x4 --collective allreduce`
synth all-reduce torus:4x4 | all-reduce is a collective: write --collective
synth fastest torus:4x4 | did you mean 'auto'?
synth fastest | a topology is expected, such as torus:4x4; by default auto is used
synth local torus:4x4 | local is a runner, for `chorale run --runner local`
synth bfb ring:4 --shards zipf:1 | --shards does not work with the method bfb
synth forest ring:4 --seed 99999999999999999999 | a seed must be 0 to 2147483647
synth forest ring:4 --k 2 --shards zipf:1 | --shards does not work with --k
verify torus:4x4 | torus:4x4 is a topology: `chorale synth torus:4x4 -o schedule.parquet`
verify cube.parquet --spec hypercube:3 | leave it out
lower cube.parquet --target msccl-xml --protocol fast -o x.xml | Simple, LL, LL128
lower cube.parquet --target msccl-xml --instances 40 -o x.xml | fits
lower forest -o made.xml | `chorale synth forest SPEC -o schedule.parquet`
run cube.parquet --runner simulated | hypercube:3 has no link rates; add the rate of a link, such as --link-mbps 1000
run cube.parquet --timeout nan | a time limit must be at most 1000000 seconds
run cube.parquet --runner simulated --link-mbps 9 --reference cube.parquet | the reference cube.parquet is the same
run cube.parquet --runner simulated --link-mbps 9 --reference ring.parquet | for the same network, hypercube:3
run cube.parquet --runner simulated --link-mbps 9 --dtype int7 | unknown element type 'int7'; did you mean 'int64'
run cube.parquet --runner simulated --link-mbps 9 --spec ring:5 | --spec must be the topology of the schedule
run unnamed.xml --runner simulated --link-mbps 9 | add --spec
run hypercube:3 | hypercube:3 is a topology: `chorale synth
show cube.parquet --spec ring:8 | the schedule file already names its topology, got --spec ring:8
show cube.parquet --rank 8 | one of the 8 ranks
show cube.xml --link-gbps 0 | above zero
show absent.txt | .parquet or .json
compare cube.parquet ring.parquet | the two files are for different networks: hypercube:3 and ring:5
compare cube.parquet gather.parquet | the two files are for different collectives: allreduce and allgather
compare unnamed.xml unnamed.xml | add --spec
simulate bfb torus:4x4 --link-gbps 1 --pipeline-chunks 0 | 1 to 65536 chunks
simulate bfb --link-gbps 1 | bfb is neither a schedule file nor a method with a topology
simulate bfb ring:4 --link-gbps 1 --alpha-us -1 | must not be negative
simulate cube.parquet --link-gbps 1 --collective allgather | must be that of the schedule, allreduce
simulate cube.parquet --calibration fit.json --hop-us 1 | --calibration already has latencies and rates, so --hop-us
simulate cube.parquet --calibration lying.csv | the calibration file is not JSON: lying.csv: Expecting value: line 1
simulate cube.parquet --calibration islands.json | a calibration must be JSON of the format
simulate hamiltonian-ring torus:3x3x3 --link-gbps 400 | edge-disjoint Hamiltonian rings need a torus
find -n 1 -d 1 | between 2 and
find -n 16380:16385 -d 4 | must end at 16384
find -n 3:4 -d 4 | no network of this degree has a size in the range: 3:4 with degree 4
find -n 8 -d 0 | at least 1
find -n 7 -d 3 --bidirectional | even number
find -n 8 -d 2 --size 1M | no --alpha-us, --bandwidth-gbps
find -n 8:9 -d 2 --plot frontier.png | --plot takes one number of nodes
find -n 5:8 -d 3 --search 0 --collective both | one number of nodes
find -n 8 -d 3 --search 0 --cables y.txt | cannot save cables as y.txt; use a name that ends in .csv, .png, .svg or .pdf
find -n 8 -d 3 --search 0 --panel-ports 6 | --panel-ports 6 needs a list of cables; add --cables cables.csv
find -n 8 -d 3 --search 0 --panel-ports 6 --cables cables.svg | add --cables cables.csv
find -n 8 -d 3 --search 0 --moves 1 | add --keep-cables
find -n 8 -d 3 --search 0 --bidirectional --keep-cables lying.csv --moves 1 | allow more --moves
find -n 8 -d 3 --search 0 --keep-cables wrong.csv | line 2
failures ring:4 --method bfb --k 2 | leave out --k
bound ring:4 --k 0 --collective allgather | at least one tree per shard
bound ring:4 --k 2 | --k works with allgather, reduce_scatter, broadcast and reduce, not with allreduce
bound ring:4 --collective broadcast --root 4 | the root 4 is not a rank
bound ring:4 --k 2 --shards zipf:1 | --shards does not work with --k
bound line:3 | line is a function: write line(
bound dump.xml | write file:dump.xml
bound made.parquet | made.parquet is a schedule
bound forest | forest is a method: a topology is expected
bound torus:4x4 allreduce | allreduce is a collective: write --collective allreduce
alltoall ring:3 --gap -1 | the gap of an all-to-all rate must not be negative, got -1
alltoall ring:4 -o a.json | write `chorale synth alltoall ring:4 --collective alltoall -o schedule.parquet`
synth alltoall torus:40x40 --collective alltoall -o a.json | an all-to-all schedule must have at most 512 ranks
alltoall file:islands.json | some nodes cannot reach each other: no path from a to c in file:islands.json
alltoall ring:4 --traffic zipf:-1 | must be 0 to 8
alltoall ring:4 --next zipf:1 | --next and --combine need --traffic
groups ring:4 --group tp=allreduce:0-4:1 | ranks must be 0 to 3
groups ring:4 --group tp=allreduce:x:1 | cannot read the ranks 'x'
groups ring:4 --group tp=allreduce:all:-1 | whole number
groups ring:4 --group tp=allreduce:all:0 | must be 1 to 2
training resnet-50 ring:8 | link rate
training resnet-50 ring:8 --link-gbps 1 --buckets 0 | size
training gpt2-small h100:2 | write forest@h100:2
experiment direct-connect-table-77 | did you mean 'direct-connect-table-
experiment direct-connect-table-5 --plot a.png | the experiment direct-connect-table-5 has no plot
experiment direct-connect-table-6 --executor cloud | unknown executor 'cloud'
topology show complete:300 --plot a.png | a drawing must have at most 50000 links
topology show product:3x8 | product is a function: write product(
topology show torus(4x4) | write family:arguments
topology import dump.xml -o a.xml | the network is written as JSON, but the output is called a.xml
topology import dump.xml --nic-gbps 0 -o a.json | --nic-gbps must be positive, got 0
topology import nothing.json --nic-gbps 100 -o a.json | the file nothing.json is empty
topology import islands.json --boxes 2 -o a.json | --boxes can only be used with a topology dump or a matrix of GPUs
fabric up ring:2 --link-mbps 5 --name never | ring
fabric up ring:3 --link-mbps fast --name never | the link rate (Mbit/s) must be a rational number
fabric up ring:3 --link-mbps 0 --name never | between 0.1 and 100000 Mbit/s
export cube.parquet -o job --target mscclpp-json | choose from msccl-xml, msccl-executor-xml, oneccl-xml
export cube.parquet -o job --hosts a,b --gpus-per-node 3 | exactly 8 GPUs
export cube.parquet -o job --tests build | absolute
export cube.parquet -o job --instances 60 | fits
export cube.parquet -o no/job | the folder no does not exist
tune campaign.yaml --set 'search.methods=[bfb, rign]' | `search.methods`: 'rign'; did you mean 'ring'
tune campaign.yaml --set 'baselines=[nothing]' | unknown method in campaign key `baselines`: 'nothing'
tune campaign.yaml --set 'baselines=[library:nccl]' | not library:nccl; let the runner choose
tune campaign.yaml --set 'baselines=[library:nccl]' --set topology=h100:1 | runner has library:modelled, not
tune campaign.yaml --set 'baselines=[library:nccl]' --set runner.kind=local | runner has no library, not library:nccl
tune campaign.yaml --set 'baselines=[library:nccl]' --set runner.kind=recorded | runner has library:rccl, not
tune campaign.yaml --set sizes=64K | campaign key `sizes` is a list, got '64K'
tune campaign.yaml --topology ring:4 | --topology ring:4 works only with --from-record
record -o b.json -- ./nothing | cannot start ./nothing: No such file or directory
topology graph ring:4 | ring:4 has no link rates; name a machine, such as a100:1
auto ring:4 --dump dump.xml | leave one of them out
tune --from-record job.json | the network of the recorded job is missing
tune --from-record job.json --topology ring:5 | the job's 4 ranks must be a multiple of the number of nodes
tune --from-record job.json --topology ring:4 --detach | --detach
best --topology ring:4 --collective sort --size 1K | sort
table write cube.xml -o t | program files do not state their sizes
table write cube.xml cube.xml --sizes 64KiB- -o t | two entries cover the same sizes: allreduce, any, 64KiB- and 64KiB-
table write cube.xml --sizes - --group 0,1 -o t | group and program have different numbers of ranks: 2 ranks for
table write cube.xml --sizes - --group 0,2,4,6,8,9,10,12 -o t | the group names ranks that the job does not have
table write cube.xml --sizes - --group all -o t | cannot read the list of ranks 'all'
table write cube.xml --sizes - --campaign small -o t | a table is written from one source, not from --campaign with
table write -o t | a table is written from one source, not from nothing
table write --topology ring:4 --beyond -o t | --beyond works only with --campaign
table write --campaign nobody -o t | no campaign 'nobody' in this data folder
table write plan.json --sizes 1-100GiB -o t | the program is for other sizes: plan.json: 0-4294967295B
"""

WRITING = """
alltoall nothing:4 -o no/a.parquet
auto --dump no.xml -o no/a.json
experiment nothing --plot no/a.png
find --nodes many --degree 4 --plot no/a.png
lift no.xml -o no/a.xml
lower no.parquet -o no/a.xml
record -o no/a.json -- nothing
record-training no:thing -o no/a.json
run no.parquet --trace no/a.json
show no.parquet --plot no/a.png
simulate bfb nothing:4 --sizes 1M --plot no/a.png
synth nothing:4 -o no/a.parquet
table write no.xml -o no/a.table
table export no.table --for nccl -o no/a.csv
topology import no.xml -o no/a.json
topology show nothing:4 --plot no/a.png
training no.json nothing:4 --plot no/a.png
"""
"""Commands whose inputs are not there: that the folder of the output is not is told first, before any work."""

CAMPAIGN = """\
{name: a, topology: ring:4, collective: allreduce, sizes: [64K], search: {methods: [bfb]}, runner: {kind: simulated}}
"""
ISLANDS = topology_document("abcd", [("a", "b", 1), ("c", "d", 1)])


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    cube, torus = (ch.synthesize(spec, "allreduce", method="bfb") for spec in ("hypercube:3", "torus:2x4"))
    ring, gather = ch.synthesize("ring:5", "allreduce", "bfb"), ch.synthesize("hypercube:3", "allgather", "bfb")
    for name, made in {"cube": cube, "torus": torus, "ring": ring, "gather": gather}.items():
        made.save(folder / f"{name}.parquet")
    text = ch.lower(cube, "msccl-xml").text
    (folder / "cube.xml").write_text(text)
    (folder / "unnamed.xml").write_text(text.replace('name="allreduce bfb hypercube:3"', 'name="tree"'))
    fit = Calibration("link", 0.0, 1e-6, 0.0, 1e9, 0.0, 0.0, None, 9)
    texts = {"lying.csv": "from,to\n" + "".join(f"a{n},a{n + 1}\n" for n in range(7)), "wrong.csv": "from,to\na,a\n"}
    texts |= {"nothing.json": "", "empty.json": "{}", "notes.txt": "some notes\n"}
    texts |= {"matrix.csv": "1,2\n3,4\n", "broken.yaml": "- a\n", "campaign.yaml": CAMPAIGN}
    texts |= {"islands.json": json.dumps(ISLANDS), "typo.yaml": CAMPAIGN.replace("collective", "colective")}
    texts |= {"fit.json": json.dumps(fit.to_json()), "plan.json": ch.lower(ring, "mscclpp-json").text}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "dump.xml").write_bytes(nvswitch_machine())
    calls = {CallKey("allreduce", "float32", None, None, 2**20): CallCount(10, 3.0)}
    (folder / "job.json").write_bytes(record_bytes(Record(4, calls)))
    return folder


@pytest.mark.parametrize(
    "line",
    [*REFUSED.strip().splitlines(), *(f"{line} | the folder no does not" for line in WRITING.strip().splitlines())],
)
def test_wrong_usage_is_one_line(line, desk, capsys, monkeypatch):
    monkeypatch.chdir(desk)
    monkeypatch.setenv("CHORALE_HOME", str(desk / "home"))
    before = set(desk.iterdir())
    words, _, message = line.rpartition(" | ")
    done = chorale(capsys, *shlex.split(words), "--quiet")
    assert (done.code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
    assert set(desk.iterdir()) - {desk / "home"} == before


GOLDEN = Path(__file__).parents[3] / "golden" / "messages.txt"
CASES = [tuple(block.strip().split("\n")) for block in GOLDEN.read_text(encoding="utf-8").split("\n\n")]


@pytest.mark.parametrize(("command", "expected"), CASES, ids=[command for command, _ in CASES])
def test_a_mistake_is_explained(command, expected, desk, capsys, monkeypatch):
    monkeypatch.chdir(desk)
    monkeypatch.setenv("CHORALE_HOME", str(desk / "home"))
    finished = chorale(capsys, *shlex.split(command.removeprefix("$ chorale ")))
    assert f"exit {finished.code}, {finished.stderr.strip()}" == expected


def test_a_closed_stdout_is_no_error(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert chorale(capsys, "topology", "show", "ring:4", "--json").code == 0


ODD = os.fsdecode(b"odd\xff")


def test_a_name_that_is_no_utf8_is_refused_in_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    for words in (
        ("campaign", "check", ODD),
        ("table", "write", "--campaign", ODD, "-o", "table"),
        ("topology", "show", f"file:{ODD}"),
        ("tune", f"{ODD}.yaml"),
        ("best", "--topology", ODD, "--collective", "allreduce", "--size", "1M"),
        ("simulate", ODD, "ring:4", "--sizes", ODD),
    ):
        done = chorale(capsys, *words)
        assert (done.code in (2, 3), done.stderr.count("\n")) == (True, 1), words
        assert done.stderr.startswith("chorale: ")
        assert done.stderr.count("; ") >= 1


def test_a_data_folder_whose_name_cannot_be_used_is_refused_where_it_is_used(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    for name in (ODD, "what?"):
        monkeypatch.setenv("CHORALE_HOME", str(tmp_path / name))
        assert chorale(capsys, "best", "--help").code == 0
        done = chorale(capsys, "campaign", "check", "small")
        assert (done.code in (2, 3), done.stderr.count("\n")) == (True, 1)
        assert list(tmp_path.iterdir()) == []


def test_names_in_files_do_not_steer_the_terminal(capsys, tmp_path):
    steering = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"
    path, program = str(tmp_path / "schedule.json"), str(tmp_path / "program.xml")
    chorale(capsys, "synth", "bfb", "ring:4", "-o", path, "--quiet")
    document = json.loads(Path(path).read_text())
    document["method"] = steering
    text = json.dumps(document).encode()
    document["id"] = from_json_text(text, load_topology, require_id=False).id
    Path(path).write_text(json.dumps(document))
    chorale(capsys, "lower", path, "--target", "msccl-xml", "-o", program, "--quiet")
    Path(program).write_text(Path(program).read_text().replace(' name="', ' name="\x9b31m'))
    for words in (("verify", path), ("show", path), ("compare", path, path), ("verify", program), ("verify", steering)):
        done = chorale(capsys, *words)
        printed = (done.stdout + done.stderr).replace("\n", "")
        assert not {letter for letter in printed if not letter.isprintable()}, (words, printed)
    assert "\N{REPLACEMENT CHARACTER}" in printed
