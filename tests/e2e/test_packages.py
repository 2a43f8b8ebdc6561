"""What README.md says the templates have, in real sandboxes: each command is there, each package is imported and used.

The lists are those of scripts/template_packages.py, which makes README's table.
"""

import json
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("e2b_code_interpreter")

from e2b_code_interpreter import Sandbox  # noqa: E402
from server import cloister  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

from template_packages import base_packages, interpreter_rows  # noqa: E402

FULL = "code-interpreter-v1"
PYTHON = [name for _, has in interpreter_rows() for name in has["debian"] + has["pypi"]]
# What one imports, where it is not the package's name.
MODULES = {
    "beautifulsoup4": "bs4",
    "ipython": "IPython",
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "python-dateutil": "dateutil",
    "python-docx": "docx",
    "python-dotenv": "dotenv",
    "python-pptx": "pptx",
    "pyyaml": "yaml",
    "scikit-image": "skimage",
    "scikit-learn": "sklearn",
}
COMMANDS = ["rg", "jq", "tmux", "vi", "nano", "sqlite3", "rsync", "ssh", "unzip", "zip", "file", "less", "tree"]


def was_built_from_todays_recipe(server):
    command = ["doctor", "--json"]
    answer = json.loads(cloister(*command, data=server.data, stdout=subprocess.PIPE, text=True).stdout)
    return any(row["check"] == "code-interpreter" and row["found"].startswith("built: ") for row in answer["checks"])


@pytest.fixture(scope="module")
def full(server):
    if not was_built_from_todays_recipe(server):
        pytest.skip(f"{FULL} is not there, or another version's: cloister template build code-interpreter")
    with Sandbox.create(FULL, timeout=600) as box:
        yield box


def text(box, code):
    result = box.run_code(code, timeout=120)
    assert result.error is None, result.error
    return result.text


def test_base_has_its_commands_and_packages(server):
    with Sandbox.create("base", timeout=60) as box:
        box.commands.run("command -v " + " ".join(COMMANDS))  # fails when one is not there
        box.commands.run("dpkg-query -W " + " ".join(base_packages()))


@pytest.mark.parametrize("name", PYTHON)
def test_a_package_is_there_and_can_be_imported(full, name):
    text(full, f"import {MODULES.get(name, name)}")


USES = {
    "numba compiles": ("import numba\nnumba.njit(lambda n: n * 2)(21)", "42"),
    "polars, pyarrow and pandas exchange tables": (
        "import polars, pandas\nint(polars.from_pandas(pandas.DataFrame({'a': [1, 2]})).to_pandas()['a'].sum())",
        "3",
    ),
    "duckdb reads a DataFrame": (
        "import duckdb, pandas\nd = pandas.DataFrame({'a': [1, 2]})\nduckdb.sql('select sum(a) from d').fetchone()[0]",
        "3",
    ),
    "opencv works on numpy's arrays": (
        "import cv2, numpy\ncv2.resize(numpy.zeros((4, 4, 3), 'uint8'), (2, 2)).shape",
        "(2, 2, 3)",
    ),
    "xgboost learns": (
        "import xgboost, numpy\nxgboost.XGBRegressor(n_estimators=2).fit(numpy.eye(4), [1, 2, 3, 4]).predict(numpy.eye(4)).shape",
        "(4,)",
    ),
    "statsmodels fits": (
        "import statsmodels.api as sm\nround(float(sm.OLS([1.0, 2, 3], sm.add_constant([1.0, 2, 3])).fit().params[1]), 6)",
        "1.0",
    ),
    "spacy splits a sentence": ("import spacy\nlen(spacy.blank('en')('One two three.'))", "4"),
    "gensim counts": ("from gensim.corpora import Dictionary\nlen(Dictionary([['a', 'b'], ['a']]))", "2"),
    "nltk has punkt_tab": ("import nltk\nlen(nltk.sent_tokenize('Mr. Smith went. He came back.'))", "2"),
    "nltk has stopwords": ("from nltk.corpus import stopwords\n'the' in stopwords.words('english')", "True"),
    "nltk has wordnet": ("from nltk.stem import WordNetLemmatizer\nWordNetLemmatizer().lemmatize('mice')", "mouse"),
    "wordnet has its file names": (
        "from nltk.corpus import wordnet\nwordnet.synset('dog.n.01').lexname()",
        "noun.animal",
    ),
    "textblob has an opinion": (
        "from textblob import TextBlob\nTextBlob('A great day.').sentiment.polarity > 0",
        "True",
    ),
    "librosa resamples": (
        "import librosa, numpy\nlen(librosa.resample(numpy.zeros(800, 'float32'), orig_sr=8000, target_sr=4000))",
        "400",
    ),
    "plotly writes pictures": (
        "import plotly.express as px\npx.bar(x=[1, 2], y=[3, 4]).to_image(format='png')[1:4].decode()",
        "PNG",
    ),
    "bokeh makes pages": (
        "from bokeh.plotting import figure\nfrom bokeh.embed import file_html\n'<html' in file_html(figure())",
        "True",
    ),
    "altair makes charts": (
        "import altair, pandas\naltair.Chart(pandas.DataFrame({'a': [1]})).mark_bar().encode(x='a:Q').to_dict()['mark']['type']",
        "bar",
    ),
    "fastapi answers": (
        "import fastapi, fastapi.testclient as t\napp = fastapi.FastAPI()\napp.get('/')(lambda: 7)\n"
        "t.TestClient(app).get('/').json()",
        "7",
    ),
    "sqlalchemy asks sqlite": (
        "import sqlalchemy as s\ns.create_engine('sqlite://').connect().execute(s.text('select 7')).scalar()",
        "7",
    ),
}


@pytest.mark.parametrize("name", USES)
def test_what_people_do_with_them_works(full, name):
    code, wanted = USES[name]
    assert text(full, code).strip("'") == wanted


def test_everybody_may_install_where_the_template_has_installed(full):
    places = ["/usr/local/lib/python3*/dist-packages", "/usr/local/lib/node_modules", "/usr/local/lib/R/site-library"]
    for place in places:
        full.commands.run(f"cd {place} && touch mine && rm mine")
