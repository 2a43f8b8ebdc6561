# Entry points. Meson and Ninja do the building; this file installs and configures what they need.
#
#   make up      from a fresh clone to a running server; prints what to paste
#   make test    everything that says whether it is right
#   make help    the rest

DATA         ?= /var/lib/cloister
LISTEN       ?= 127.0.0.1:7070
PREFIX       ?= /usr/local
DESTDIR      ?=
INTERPRETER  ?= yes
FUZZ_SECONDS ?= 600
SUDO         ?= $(if $(filter 0,$(shell id -u)),,sudo)

# Optional: it says why it is not there.
CRIU = $(SUDO) scripts/criu.sh >/dev/null || echo 'paused sandboxes stay in memory, or are kept without it'

# A sanitizer's finding fails the test.
export ASAN_OPTIONS  ?= abort_on_error=1:detect_leaks=1:strict_string_checks=1
export UBSAN_OPTIONS ?= halt_on_error=1:abort_on_error=1:print_stacktrace=1

# A progress line on a terminal, nothing in a log. A dry run first, so that nothing is printed when all is up to date.
define compile
	@ninja -C $(1) build.ninja >$(1)/setup.log 2>&1 || { cat $(1)/setup.log; exit 1; }
	@ninja -C $(1) -n | grep -q 'no work to do' || \
	{ [ -t 1 ] || quiet=--quiet; echo 'compiling $(1)'; NINJA_STATUS='  [%f/%t] ' ninja $$quiet -C $(1); }
endef

comma := ,
# Meson's output goes to a log, which is shown if it fails.
define configure
	@echo 'configuring $(1)'
	@mkdir -p $(1)
	@$(2) meson setup $(1) $(3) >$(1)/setup.log 2>&1 || { cat $(1)/setup.log; exit 1; }
endef

.PHONY: all up install uninstall check test model clients bench fuzz lint format clean help
.NOTPARALLEL:

all: build/build.ninja ## build/cloister, build/cloister-guestd and build/cloister-mail
	$(call compile,build)
	@scripts/link-programs.sh build

# The template for run_code takes minutes more, and not everyone needs it. So it is built while the server runs, and the
# server finds it when a client asks for it.
up: all ## build, make the base template once, then serve in the foreground
	@$(SUDO) scripts/can_serve.py '$(LISTEN)' '$(DATA)'
	@scripts/setup.sh user names
	@$(CRIU)
	@$(SUDO) grep -rqsx 'name base' $(DATA)/templates || $(SUDO) build/cloister template build base --data $(DATA)
	@[ '$(INTERPRETER)' = no ] || $(SUDO) grep -rqsx 'name code-interpreter-v1' $(DATA)/templates || $(SUDO) sh -c \
	    'echo "building the template for run_code in the background: tail -f $(DATA)/code-interpreter.log"; \
	     nice -n 10 build/cloister template build code-interpreter --data $(DATA) >>$(DATA)/code-interpreter.log 2>&1 &'
	@exec $(SUDO) build/cloister serve --data $(DATA) --listen $(LISTEN)

# All programs in one directory, because cloister looks for the others there. Only cloister is on the PATH.
libexec = $(DESTDIR)$(PREFIX)/libexec/cloister
install: all ## put cloister below PREFIX (/usr/local); DESTDIR is for packagers
	@install -d $(libexec) $(DESTDIR)$(PREFIX)/bin
	@install -m 755 build/cloister build/cloister-guestd build/cloister-mail $(libexec)
	@ln -sfn ../libexec/cloister/cloister $(DESTDIR)$(PREFIX)/bin/cloister
	@[ -n '$(DESTDIR)' ] || scripts/setup.sh user
	@echo 'installed $(DESTDIR)$(PREFIX)/bin/cloister; next: `cloister help`'

uninstall: ## remove what install has put there; the data directory stays
	@rm -f $(DESTDIR)$(PREFIX)/bin/cloister $(libexec)/cloister $(libexec)/cloister-guestd $(libexec)/cloister-mail
	@[ ! -d $(libexec) ] || rmdir $(libexec)
	@echo 'removed $(DESTDIR)$(PREFIX)/bin/cloister; $(DATA) and the users cloister, cloister-egress, cloister-signer, cloister-composer, cloister-webhooks and cloister-puller are still there'

check: build-asan/build.ninja ## unit tests under ASan and UBSan; no root, about two minutes
	$(call compile,build-asan)
	@scripts/link-programs.sh build-asan
	@meson test -C build-asan --suite unit --no-rebuild --print-errorlogs --quiet

test: all build/.deps-test ## check, root tests, clang, lint-quick, the proof, end to end, the network, a little fuzzing
	@$(CRIU)
	@FUZZ_SECONDS=$(if $(filter file,$(origin FUZZ_SECONDS)),10,$(FUZZ_SECONDS)) scripts/test.py

model: ## prove the mail gate with CBMC (fetched if missing), and check that the proof notices planted mistakes
	@tests/model/run.py

# Not part of `make test`: it fetches gigabytes from PyPI and npm.
clients: all ## agent frameworks as they are on PyPI and npm; VERSIONS=newest, CLIENTS="agno cli", SERVER=running
	$(if $(filter-out newest,$(VERSIONS)),$(error VERSIONS is newest, or not set for the pinned ones; not '$(VERSIONS)'))
	$(if $(filter-out running,$(SERVER)),$(error SERVER is running, or not set for a server of its own; not '$(SERVER)'))
	@scripts/setup.sh clients $(if $(filter running,$(SERVER)),,user)
	@$(if $(filter running,$(SERVER)),,$(if $(SUDO),$(SUDO) --preserve-env)) tests/clients/run.py \
	    $(if $(filter newest,$(VERSIONS)),--newest) $(if $(filter running,$(SERVER)),--running) $(CLIENTS)

bench: all ## how fast, beside runc, crun, bubblewrap and bare Python
	@scripts/setup.sh bench
	@$(SUDO) bench/run

fuzz: build-fuzz/build.ninja ## fuzz every decoder for FUZZ_SECONDS each (600)
	@scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS)

lint: build-clang/build.ninja ## formatting, clang-tidy, Python, shell
	$(call compile,build-clang)
	@scripts/lint.sh all build-clang

format: ## format every C file with clang-format
	@find src tests bench -name '*.[ch]' -not -path '*/node_modules/*' | xargs clang-format -i

clean: ## remove every build; the data directory stays
	rm -rf build build-asan build-clang build-fuzz

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

# Packages are checked once per version of setup.sh, not each time.
build/.deps build/.deps-test: scripts/setup.sh
	@scripts/setup.sh build $(if $(filter %-test,$@),test user names)
	@mkdir -p build && touch $@

# Warnings are errors only in the builds for tests, so that a newer compiler does not keep users from building.
build/build.ninja: | build/.deps
	$(call configure,build,,-Dtests=false -Dwerror=false)

build-asan/build.ninja: | build/.deps-test
	$(call configure,build-asan,,-Db_sanitize=address$(comma)undefined -Dtest_holes=true)

build-clang/build.ninja: | build/.deps-test
	$(call configure,build-clang,CC=clang)

build-fuzz/build.ninja: | build/.deps-test
	$(call configure,build-fuzz,CC=clang,-Dfuzz=true -Dtests=false -Db_sanitize=address$(comma)undefined -Db_lundef=false)
