# What makes `code-interpreter-v1` out of `base`. Runs as root in a chroot of the new template, with sh -eu.
# Lines that begin with "==" say what comes next, and from where to where in percent it leads; apt's own status lines say how
# far it is in between.

export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# The status goes to the same pipe by a description of its own: apt makes that one non-blocking, and a package's script whose
# echo does not wait for room fails.
apt() { apt-get -q -y -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 -o APT::Status-Fd=3 "$@" 3> /proc/self/fd/1; }
trap 'rm -f /usr/sbin/policy-rc.d' EXIT

# There is no init in here to start services with.
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d

echo "== 0 3 fetching package lists"
apt update

mkdir -p /usr/share/man/man1 # Java's package wants to make links there, manuals or not
packages="
    python3-ipython python3-ipykernel python3-matplotlib-inline
    python3-numpy python3-pandas python3-scipy python3-sklearn python3-skimage python3-sympy python3-networkx
    python3-xarray python3-joblib python3-matplotlib python3-seaborn python3-plotly python3-pil python3-imageio
    python3-requests python3-urllib3 python3-aiohttp python3-tornado python3-bs4 python3-lxml python3-html5lib
    python3-openpyxl python3-xlrd python3-docx python3-jinja2 python3-yaml python3-orjson python3-tabulate
    python3-tz python3-tqdm python3-pytest python3-nltk
    fonts-dejavu-core fonts-noto-cjk jq
    r-base-core r-cran-irkernel r-cran-repr
    openjdk-25-jdk-headless"

echo "== 3 25 fetching Python packages, R and Java from Debian"
# shellcheck disable=SC2086 # a list of words
apt install --no-install-recommends --download-only $packages

# Manuals and translations are a third of the size, and nobody reads them in a sandbox.
echo "== 25 75 installing Python packages, R and Java"
# shellcheck disable=SC2086 # as above
apt install --no-install-recommends \
    -o Dpkg::Options::='--path-exclude=/usr/share/doc/*' -o Dpkg::Options::='--path-exclude=/usr/share/man/*' \
    -o Dpkg::Options::='--path-exclude=/usr/share/locale/*' $packages

# Charts with Chinese, Japanese or Korean text: the second family has what the first lacks.
echo 'font.family: sans-serif, Noto Sans CJK JP' >> /etc/matplotlibrc

echo "== 75 79 installing the Bash interpreter"
pip install --quiet --no-input --no-cache-dir --root-user-action=ignore bash_kernel==0.10.0
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
# Java trusts a list of its own; the machine's may know a proxy that everything here goes through.
openssl pkcs12 -export -nokeys -jdktrust anyExtendedKeyUsage -in /etc/ssl/certs/ca-certificates.crt \
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

echo "== 97 100 cleaning up"
apt clean
rm -rf /var/lib/apt/lists/* /root/.npm /root/.m2 /root/.cache /tmp/* /var/tmp/* /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
