# shellcheck shell=bash
# What makes `code-interpreter-v1` out of `base`. Runs in a sandbox on base, as its root, with bash -eu. SSL_CERT_FILE is a bundle
# of certificates outside the template's files, which may know a proxy that everything here goes through.
# Lines that begin with "==" say what comes next, and from where to where in percent it leads; apt's own status lines say how
# far it is in between. Lines that begin with "package:" are what is in the template.

export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
set -o pipefail
# Of apt's status lines, one for every fourth percent: all of what is printed here goes to a log.
thin() {
    local line last=
    while IFS= read -r line; do
        [[ $line =~ :([0-9]+)\.[0-9]+: ]] || continue
        [ "$((BASH_REMATCH[1] / 4))" = "$last" ] || echo "$line"
        last=$((BASH_REMATCH[1] / 4))
    done
}
# The status has a pipe of its own: apt makes it non-blocking, and a package's script whose echo does not wait for room fails.
apt() {
    apt-get -q -y -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 -o Acquire::https::CaInfo="$SSL_CERT_FILE" \
        -o APT::Status-Fd=3 "$@" 3>&1 >&4 | thin
} 4>&1
trap 'rm -f /usr/sbin/policy-rc.d' EXIT

# There is no init in here to start services with.
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d

echo "== 0 3 fetching package lists"
apt update

# What is installed, and what README.md shows of it (scripts/template_packages.py prints that):
#   for WHAT              begins a row of README's table
#   debian PACKAGE...       from Debian; PACKAGE=NAME where PyPI calls it otherwise than python3-NAME
#   pypi NAME==VERSION...   a wheel from PyPI, because Debian has none, or one that is too old or too large
#   also TEXT             more words for README
#   needs-debian ..., needs-pypi ...   what the others need, or what README names in its own words
# Wheels are installed without asking for their dependencies, so that numpy and its like stay Debian's: all that they need is
# listed here. numba, llvmlite, opencv and pyarrow work with one numpy of 2.0 to 2.2; look at that before raising one of them.
# xgboost is Debian's because the wheel on PyPI brings NVIDIA's libraries.
list="
for numbers and tables
debian python3-numpy python3-pandas python3-scipy python3-sklearn=scikit-learn python3-skimage=scikit-image python3-statsmodels
debian python3-xgboost python3-sympy python3-networkx python3-xarray python3-joblib
pypi polars==1.44.2 pyarrow==26.0.1 duckdb==1.5.6 numba==0.61.2
needs-debian python3-patsy
needs-pypi polars-runtime-32==1.44.2 llvmlite==0.44.0
for charts and pictures
debian python3-matplotlib python3-seaborn python3-pil=pillow python3-imageio
pypi plotly==6.9.0 kaleido==0.2.1 bokeh==3.9.1 altair==6.3.0 opencv-python-headless==4.11.0.86
also fonts with Chinese, Japanese and Korean
needs-debian python3-matplotlib-inline python3-jsonschema fonts-dejavu-core fonts-noto-cjk
needs-pypi narwhals==2.28.0 xyzservices==2026.9.1
for language and sound
debian python3-nltk python3-soundfile
pypi spacy==3.8.14 gensim==4.4.0 textblob==0.19.0 librosa==0.11.0
also NLTK's stopwords, punkt_tab and wordnet
needs-debian wordnet-base wordnet-sense-index python3-pooch python3-lazy-loader python3-msgpack python3-decorator
needs-debian python3-typer python3-smart-open python3-regex
needs-pypi audioread==3.1.0 standard-aifc==3.13.0 standard-sunau==3.13.0 standard-chunk==3.13.0 audioop-lts==0.2.2 soxr==1.1.0
needs-pypi thinc==8.3.14 blis==1.3.4 cymem==2.0.16 preshed==3.0.15 murmurhash==1.0.16 srsly==2.5.5 catalogue==2.0.10
needs-pypi confection==1.3.4 wasabi==1.1.3 weasel==1.0.1 cloudpathlib==0.26.0 spacy-legacy==3.0.12 spacy-loggers==1.0.5
for documents
debian python3-openpyxl python3-xlrd python3-xlsxwriter python3-docx=python-docx python3-pypdf python3-reportlab
debian python3-bs4=beautifulsoup4 python3-lxml python3-html5lib python3-jinja2 python3-yaml=pyyaml python3-orjson python3-tabulate
pypi python-pptx==1.0.2
for the web and databases
debian python3-requests python3-httpx python3-aiohttp python3-urllib3 python3-tornado python3-flask python3-fastapi
debian python3-uvicorn python3-pydantic python3-sqlalchemy
needs-debian python3-multipart
for the rest of Python
debian python3-ipython python3-pytest python3-tqdm python3-tz=pytz python3-dateutil=python-dateutil python3-dotenv=python-dotenv
needs-debian python3-ipykernel
for other languages
also Bash (bash_kernel, from PyPI), JavaScript and TypeScript (Deno, from npm), R with IRkernel, OpenJDK 25 with rapaio's kernel (from Maven Central)
needs-debian r-base-core r-cran-irkernel r-cran-repr openjdk-25-jdk-headless
needs-pypi bash_kernel==0.10.0 filetype==1.2.0
"
listed() { printf '%s\n' "$list" | sed -n "s/^\\(needs-\\)\\{0,1\\}$1 //p"; }
packages=$(listed debian | sed 's/=[^ ]*//g')
wheels=$(listed pypi)

mkdir -p /usr/share/man/man1 # Java's package wants to make links there, manuals or not
echo "== 3 25 fetching Python packages, R and Java from Debian"
# shellcheck disable=SC2086 # a list of words
apt install --no-install-recommends --download-only $packages

# Manuals and translations are a third of the size, and nobody reads them in a sandbox. Of Java, jmods (340 MB) are for jlink,
# and the class archives with a longer name (50 MB) for options that nobody sets. The Unicode tables are for who generates code.
echo "== 25 60 installing Python packages, R and Java"
# shellcheck disable=SC2086 # as above
apt install --no-install-recommends \
    -o Dpkg::Options::='--path-exclude=/usr/share/doc/*' -o Dpkg::Options::='--path-exclude=/usr/share/man/*' \
    -o Dpkg::Options::='--path-exclude=/usr/share/locale/*' -o Dpkg::Options::='--path-exclude=/usr/lib/jvm/*/jmods/*' \
    -o Dpkg::Options::='--path-exclude=/usr/lib/jvm/*/lib/server/classes_*.jsa' \
    -o Dpkg::Options::='--path-exclude=/usr/share/unicode/*' $packages
# 200 MB of the packages' own tests. numpy's stay: numpy.testing imports from them. gensim's stay: tutorials use its texts.
drop_tests() { # DIRECTORY PACKAGE...
    place=$1
    shift
    for name; do find "$place/$name" -type d -name tests -prune -exec rm -rf {} +; done
}
drop_tests /usr/lib/python3/dist-packages \
    matplotlib mpl_toolkits pandas scipy sympy statsmodels sklearn skimage networkx xarray

# Charts with Chinese, Japanese or Korean text: the second family has what the first lacks.
echo 'font.family: sans-serif, Noto Sans CJK JP' >> /etc/matplotlibrc

echo "== 60 76 installing Python packages from PyPI"
pip_get() { pip "$@" --quiet --no-input --no-cache-dir --disable-pip-version-check --no-deps; }
# shellcheck disable=SC2086 # as above
pip_get install --root-user-action=ignore --only-binary :all: $wheels
wheels_at=$(echo /usr/local/lib/python3*/dist-packages)
drop_tests "$wheels_at" numba pyarrow spacy thinc
# Symbols for debuggers are a quarter of it. What lies in *.libs was edited by auditwheel, and strip may damage that; kaleido
# is a whole Chromium, of which only the program is worth it.
find "$wheels_at" \( -name '*.libs' -o -name kaleido \) -prune -o \
    -type f \( -name '*.so' -o -name '*.so.[0-9]*' \) -exec strip --strip-unneeded {} +
strip "$wheels_at/kaleido/executable/bin/kaleido"

# NLTK's own data is on GitHub only. This wheel carries some of it, and Debian has the same WordNet.
pip_get download --dest /tmp/nltk llama-index-core==0.14.25
mkdir -p /usr/local/share/nltk_data/corpora
unzip -q /tmp/nltk/llama_index_core-*.whl 'llama_index/core/_static/nltk_cache/*' -x '*.zip' -d /tmp/nltk
cp -R /tmp/nltk/llama_index/core/_static/nltk_cache/* /usr/local/share/nltk_data/
ln -s /usr/share/wordnet /usr/local/share/nltk_data/corpora/wordnet
# The one file that Debian leaves out: the names of WordNet's 45 files, in their order, and what each holds (1 nouns, 2 verbs,
# 3 adjectives, 4 adverbs).
number=0
for name in adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body noun.cognition \
    noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive noun.object noun.person \
    noun.phenomenon noun.plant noun.possession noun.process noun.quantity noun.relation noun.shape noun.state noun.substance \
    noun.time verb.body verb.change verb.cognition verb.communication verb.competition verb.consumption verb.contact \
    verb.creation verb.emotion verb.motion verb.perception verb.possession verb.social verb.stative verb.weather adj.ppl; do
    case $name in noun.*) kind=1 ;; verb.*) kind=2 ;; adj.*) kind=3 ;; *) kind=4 ;; esac
    printf '%02d\t%s\t%d\n' "$number" "$name" "$kind"
    number=$((number + 1))
done > /usr/share/wordnet/lexnames

echo "== 76 79 installing the Bash interpreter"
python3 -m bash_kernel.install --prefix /usr/local

echo "== 79 84 installing the JavaScript and TypeScript interpreter"
npm install --global --no-audit --no-fund --loglevel=error deno@2.9.6
mkdir -p /usr/local/share/jupyter/kernels/deno /usr/local/share/jupyter/kernels/java
cat > /usr/local/share/jupyter/kernels/deno/kernel.json << 'END'
{"argv": ["/usr/local/bin/deno", "jupyter", "--kernel", "--conn", "{connection_file}"],
 "display_name": "Deno", "language": "typescript", "env": {"NO_COLOR": "1"}}
END

echo "== 84 94 installing the Java interpreter"
mkdir -p /usr/local/lib/jupyter
apt install --no-install-recommends maven
# Java trusts a list of its own.
openssl pkcs12 -export -nokeys -jdktrust anyExtendedKeyUsage -in "$SSL_CERT_FILE" \
    -out /tmp/trust.p12 -passout pass:public
MAVEN_OPTS="-Djavax.net.ssl.trustStore=/tmp/trust.p12 -Djavax.net.ssl.trustStoreType=PKCS12 \
    -Djavax.net.ssl.trustStorePassword=public" mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
    -Dartifact="io.github.padreati:rapaio-jupyter-kernel:$JAVA_KERNEL" -Dmdep.stripVersion=true \
    -DoutputDirectory=/usr/local/lib/jupyter
mv /usr/local/lib/jupyter/rapaio-jupyter-kernel.jar /usr/local/lib/jupyter/java.jar
apt purge --auto-remove maven
# It logs every message to stderr, where output of a cell's own subprocesses would be looked for. Its heap is half of the
# template's memory: left to itself Java takes a quarter of what /proc/meminfo shows, which is the machine's, and is killed.
cat > /usr/local/share/jupyter/kernels/java/kernel.json << 'END'
{"argv": ["sh", "-c", "exec java -Xmx1g -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -jar /usr/local/lib/jupyter/java.jar \"$0\" 2>/dev/null",
          "{connection_file}"],
 "display_name": "Java", "language": "java", "interrupt_mode": "message"}
END

# What the first cell of every sandbox would otherwise make for itself: a list of fonts, compiled modules.
echo "== 94 97 warming caches"
runuser -u user -- python3 -c 'import matplotlib.pyplot as plt; plt.plot([1]); plt.savefig("/dev/null", format="png")'
python3 -m compileall -q /usr/local/lib/python3* > /dev/null || true

# As in base, everybody may install into /usr/local.
chmod 1777 /usr/local/lib/R/site-library /usr/local/lib/node_modules

dpkg-query -W -f 'package: ${binary:Package} ${Version}\n'
pip list --format=freeze --disable-pip-version-check | sed 's/^/package: pip /'
npm ls --global --parseable --long --depth=0 | sed -n 's/^[^:]*:\([^:]*@[^:]*\).*/package: npm \1/p'

echo "== 97 100 cleaning up"
apt clean
rm -rf /var/lib/apt/lists/* /root/.npm /root/.m2 /root/.cache /tmp/* /var/tmp/* /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
