"""Wrong words on the command line, three or more for each command: what was wrong is named, nothing is written."""

import pytest
from typer.main import get_command

import ordnet
from ordnet.commands import app, main
from ordnet.config import OMNI_RANGE, override
from ordnet.data.pictures import sample_picture
from ordnet.errors import OrdnetError
from ordnet.model.build import OTHER_BLOCKS, build_from, variants
from ordnet.recipes import recipes, settings_of

# the words, and what the message must contain; FILE is no picture, FOLDER is empty
MISTAKES = [
    ("nosuch", "No such command 'nosuch'"),
    ("train", "Missing argument 'recipe'"),
    ("train nosuch", "no recipe 'nosuch' (a settings file ends in .yaml); `ordnet recipes` lists all"),
    ("train stanford", "perhaps stanford-mobilenet"),
    ("train folder-default", "folder-default needs your pictures: --data folder:PATH"),
    ("train scenes-tiny --set model.decoder=finest", "there is no decoder 'finest'; there are plain, fine, dense"),
    ("train folder-default --data folder:FOLDER", "no images/ and labels/ in"),
    ("train scenes-tiny --data scene", "no data set 'scene'; there are folder, tar, ade20k"),
    ("train scenes-tiny --set training.epoch=3", "training has no setting 'epoch', perhaps epochs; there are epochs"),
    ("train scenes-tiny --set training.epochs=-3", "should be greater than 0, got -3"),
    ("train scenes-tiny --set epochs=3", "expected section.key=value; there are data."),
    ("train scenes-tiny --set model.backbone=resnet20", "no backbone 'resnet20'; there are resnet18"),
    ("train folder-default --data scenes --set model.backbone=resnet20", "no backbone 'resnet20'; there are resnet18"),
    ("train scenes-tiny --init FILE", "is no ordnet checkpoint"),
    (
        "train folder-default --data scenes --set model.variant=dilated-fcn --init outdoor",
        "model.variant is ordnet there",
    ),
    ("train scenes-tiny --data tar:FOLDER", "no train-*.tar for the split 'train'; there are: none"),
    ("train scenes-tiny --data tar:FOLDER/a-{0..1}.tar", "2 of 2 shards are missing"),
    ("recipes scenes-tiny --cost", "--cost is about the paper's recipes"),
    ("recipes --paper --cost", "either the paper's tables"),
    ("data shards scenes --out FILE", "name a new folder"),
    ("ablate branch --data scenes", "no ablation 'branch'; there are branches"),
    ("ablate branches --data scenes --seeds 0", "--seeds"),
    ("ablate branches --data scenes --split tset", "no split 'tset': there are train, val, test"),
    ("ablate branches --data scenes --set model.patches=40", "32x32 positions cannot be cut into 40x40 patches"),
    ("evaluate outdoor", "Missing option '--data'"),
    ("evaluate outdor --data scenes", "no model 'outdor'"),
    ("evaluate outdoor --data scenes", "different classes"),
    ("evaluate FILE --data scenes", "is no ordnet checkpoint"),
    ("evaluate outdoor --data scenes --out x.foo", "expected a file that ends in .png"),
    ("evaluate outdoor --data scenes --json FOLDER", "is a folder: name a file"),
    ("compare outdoor --data scenes --out x.gif", "expected a file that ends in .png"),
    ("compare nosuch --data scenes --out x.png", "no model 'nosuch'"),
    ("compare outdoor --data scenes --out x.png --pick best", "'best' is not one of 'even'"),
    ("submit coco outdoor --data scenes --out x.zip", "no server 'coco'; there are ade20k"),
    ("submit voc outdoor --data voc:FOLDER --out x.zip", "no JPEGImages/"),
    ("submit voc outdoor --data voc:FOLDER --out x.tar", "the voc server takes a file that ends in .tar.gz"),
    ("predict outdoor nowhere.jpg --out o", "no picture, folder or match for nowhere.jpg"),
    ("predict outdoor FOLDER --out o", "no pictures in"),
    ("predict outdoor SAMPLE --out o --save everything", "expected some of overlay, labels"),
    ("predict outdoor SAMPLE --out o --device tpu", "no device 'tpu' here; use cpu"),
    ("predict outdoor SAMPLE --out FILE", "is a file; give a folder"),
    ("explain outdoor SAMPLE --out x.png", "no position to explain"),
    ("explain outdoor SAMPLE --out x.png --at 9999,1", "lies outside the picture of 640 x 427"),
    ("explain outdoor SAMPLE --out x.png --at hello", "expected X,Y in whole pixels"),
    ("export outdoor --out x.pt", "expected a file that ends in .onnx"),
    ("export nosuch --out x.onnx", "no model 'nosuch'"),
    ("export FILE --out x.onnx", "is no ordnet checkpoint"),
    ("serve nosuch", "no model 'nosuch'"),
    ("serve outdoor --port 99999", "--port"),
    ("serve outdoor --host 300.1.1.1", "no host '300.1.1.1'"),
    ("recipes outdor", "perhaps outdoor"),
    ("recipes outdoor --paper", "not both"),
    ("recipes --papers", "No such option"),
    ("bench block --size 12", "expected CHANNELSxHEIGHTxWIDTH"),
    ("bench block --size 8x1000000x1000000", "not enough memory; a smaller size"),
    ("bench model --backbone resnet20", "no backbone 'resnet20'"),
    ("bench loader --data folder:FOLDER", "no images/ and labels/ in"),
    ("data check nosuch", "no data set 'nosuch'"),
    ("data stats folder:FOLDER", "no images/ and labels/ in"),
    ("data preview scenes --out x.txt", "expected a file that ends in .png"),
    ("data correlate scenes --out x.png --n 100000", "has only 2,000 samples"),
    ("data import labelme FOLDER --out y", "no labelme files"),
    ("data import coco FILE --out y", "not readable as JSON"),
    ("models nosuch", "no model 'nosuch'"),
    ("models push outdoor", "Missing argument 'USER/NAME'"),
    ("models show", "Missing argument 'model'"),
    ("demo --set foo", "expected section.key=value"),
    ("demo --set training.epochs=x", "valid integer"),
    ("demo --out FILE", "is a file; give a folder"),
]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """`run("data check scenes")` in an empty folder → exit code, what was said, names of the files there are now."""
    place = tmp_path / "here"
    place.mkdir()
    (tmp_path / "words.jpg").write_text("no picture")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "400")
    stands_for = {"FILE": tmp_path / "words.jpg", "FOLDER": tmp_path / "empty", "SAMPLE": sample_picture()}

    def call(words):
        for name, path in stands_for.items():
            words = words.replace(name, str(path))
        monkeypatch.setattr("sys.argv", ["ordnet", *(word.replace("NOTHING", "") for word in words.split())])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out + said.err, [path.name for path in place.rglob("*")]

    return call


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("predict outdoor NOTHING --out x", "after outdoor"),
        ("predict outdoor SAMPLE --out NOTHING", "after --out"),
        ("train scenes-tiny --out=NOTHING", "--out="),
        ("evaluate NOTHING --data scenes", "after evaluate"),
    ],
)
def test_an_empty_word_is_never_the_present_folder(run, words, where):
    code, said, left = run(words)
    assert code == 1 and f"an empty word {where}: perhaps a variable" in said
    assert left == []


@pytest.mark.parametrize(("words", "expected"), MISTAKES)
def test_a_mistake_is_named_and_leaves_nothing(run, words, expected):
    code, said, left = run(words)
    assert code in (1, 2)
    assert expected in said
    assert left == []


def test_a_hub_that_is_no_folder_is_named(run, monkeypatch):
    """No other weights stand in for it."""
    monkeypatch.setenv("ORDNET_HUB", "nowhere")
    code, said, left = run("train folder-default --data scenes")
    assert code == 1 and "ORDNET_HUB=nowhere is no folder" in said
    assert left == []


def test_every_command_has_its_mistakes():
    words = [mistake.split()[0] for mistake, _ in MISTAKES]
    assert all(words.count(command) >= 3 for command in get_command(app).commands)


def test_version(run):
    assert run("--version") == (0, f"{ordnet.__version__}\n", [])


def test_another_fault_keeps_its_trace(run, monkeypatch):
    def fail():
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr("ordnet.recipes.recipes", fail)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run("recipes")


def test_pictures_may_be_named_by_a_setting(run):
    assert "no images/ and labels/ in" in run("train folder-default --set data.name=folder:FOLDER")[1]


@pytest.mark.parametrize("variant", variants())
def test_every_variant_from_every_light_recipe(variant):
    """One word changes the network; what the recipe says of a block does not stand in its way."""
    for name in ("folder-default", "scenes-tiny", "outdoor"):
        changed = override(
            settings_of(name), [f"model.variant={variant}", "model.backbone=tiny", "model.output_stride=4"]
        )
        assert build_from(changed.model, 3).config.variant == variant
    assert (variant in OMNI_RANGE) == (variant not in OTHER_BLOCKS)
    if variant in OTHER_BLOCKS:
        clash = override(recipes()["folder-default"].settings, [f"model.variant={variant}", "model.patches=3"])
        with pytest.raises(OrdnetError, match="patches would have no effect"):
            build_from(clash.model, 3)


def test_every_option_says_what_it_does():
    def silent(command, name):
        for option in command.params:
            if option.name != "help" and not getattr(option, "help", None):
                yield f"{name} {option.name}"
        for below, inner in getattr(command, "commands", {}).items():
            yield from silent(inner, f"{name} {below}")

    assert list(silent(get_command(app), "ordnet")) == []
