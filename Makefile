# The front door. Meson and Ninja do the building; this file knows what to do first.
#
#   make up      from a fresh clone to a running server; prints the lines to paste
#   make test    everything that says whether it is right
#   make help    the rest

DATA         ?= /var/lib/cloister
LISTEN       ?= 127.0.0.1:7070
PREFIX       ?= /usr/local
DESTDIR      ?=
INTERPRETER  ?= yes
FUZZ_SECONDS ?= 600
SUDO         ?= $(if $(filter 0,$(shell id -u)),,sudo)

# A finding of a sanitizer is a failed test, not a line in a log.
export ASAN_OPTIONS  ?= abort_on_error=1:detect_leaks=1:strict_string_checks=1
export UBSAN_OPTIONS ?= halt_on_error=1:abort_on_error=1:print_stacktrace=1

# A progress line for a person, silence for a log. Ninja is asked first whether there is anything to do, so that it has
# nothing to say when there is not.
define compile
	@ninja -C $(1) build.ninja >$(1)/setup.log 2>&1 || { cat $(1)/setup.log; exit 1; }
	@ninja -C $(1) -n | grep -q 'no work to do' || \
	{ [ -t 1 ] || quiet=--quiet; echo 'compiling $(1)'; NINJA_STATUS='  [%f/%t] ' ninja $$quiet -C $(1); }
endef

comma := ,
# Meson says a page for each build; somebody wants to read it when it fails.
define configure
	@echo 'configuring $(1)'
	@mkdir -p $(1)
	@$(2) meson setup $(1) $(3) >$(1)/setup.log 2>&1 || { cat $(1)/setup.log; exit 1; }
endef

.PHONY: all up install uninstall check test clients bench fuzz lint format clean help
.NOTPARALLEL:

all: build/build.ninja ## build/cloister and build/cloister-guestd
	$(call compile,build)
	@scripts/link-programs.sh build

# The template for run_code takes minutes more, and not everybody needs it: it is made beside the running server, which
# finds it when it is asked for it.
up: all ## build, make the base template once, then serve in the foreground
	@scripts/setup.sh user
	@$(SUDO) grep -rqsx 'name base' $(DATA)/templates || $(SUDO) build/cloister template build base --data $(DATA)
	@[ '$(INTERPRETER)' = no ] || $(SUDO) grep -rqsx 'name code-interpreter-v1' $(DATA)/templates || $(SUDO) sh -c \
	    'echo "making the code-interpreter template meanwhile, for run_code: tail -f $(DATA)/code-interpreter.log"; \
	     nice -n 10 build/cloister template build code-interpreter --data $(DATA) >>$(DATA)/code-interpreter.log 2>&1 &'
	@exec $(SUDO) build/cloister serve --data $(DATA) --listen $(LISTEN)

# Both programs in one place, for cloister finds guestd beside itself; only the one that people call is on their PATH.
libexec = $(DESTDIR)$(PREFIX)/libexec/cloister
install: all ## put cloister below PREFIX (/usr/local); DESTDIR is for packagers
	@install -d $(libexec) $(DESTDIR)$(PREFIX)/bin
	@install -m 755 build/cloister build/cloister-guestd $(libexec)
	@ln -sfn ../libexec/cloister/cloister $(DESTDIR)$(PREFIX)/bin/cloister
	@[ -n '$(DESTDIR)' ] || scripts/setup.sh user
	@echo 'installed $(DESTDIR)$(PREFIX)/bin/cloister; `cloister help` says how to go on'

uninstall: ## take back what install has put there; the data directory stays
	@rm -f $(DESTDIR)$(PREFIX)/bin/cloister $(libexec)/cloister $(libexec)/cloister-guestd
	@[ ! -d $(libexec) ] || rmdir $(libexec)
	@echo 'removed $(DESTDIR)$(PREFIX)/bin/cloister; $(DATA) and the user cloister are still there'

check: build-asan/build.ninja ## unit tests under ASan and UBSan; no root, seconds
	$(call compile,build-asan)
	@scripts/link-programs.sh build-asan
	@meson test -C build-asan --suite unit --no-rebuild --print-errorlogs --quiet

test: all build/.deps-test ## check, root tests, clang, lint-quick, end to end, a little fuzzing
	@FUZZ_SECONDS=$(if $(filter file,$(origin FUZZ_SECONDS)),20,$(FUZZ_SECONDS)) scripts/test.py

# Not part of `make test`: it fetches gigabytes from PyPI and npm.
clients: all ## agent frameworks as they are on PyPI and npm; VERSIONS=newest, CLIENTS="agno cli", SERVER=running
	$(if $(filter-out newest,$(VERSIONS)),$(error VERSIONS is newest, or not set for the pinned ones; not '$(VERSIONS)'))
	$(if $(filter-out running,$(SERVER)),$(error SERVER is running, or not set for a server of its own; not '$(SERVER)'))
	@scripts/setup.sh clients $(if $(filter running,$(SERVER)),,user)
	@$(if $(filter running,$(SERVER)),,$(if $(SUDO),$(SUDO) --preserve-env)) tests/clients/run.py \
	    $(if $(filter newest,$(VERSIONS)),--newest) $(if $(filter running,$(SERVER)),--running) $(CLIENTS)

bench: all ## how fast, next to runc, crun, bubblewrap and bare Python
	@scripts/setup.sh bench
	@$(SUDO) bench/run

fuzz: build-fuzz/build.ninja ## fuzz every decoder for FUZZ_SECONDS each (600)
	@scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS)

lint: build-clang/build.ninja ## formatting, clang-tidy, Python, shell
	$(call compile,build-clang)
	@scripts/lint.sh all build-clang

format: ## lay out every C file as .clang-format says
	@find src tests bench -name '*.[ch]' -not -path '*/node_modules/*' | xargs clang-format -i

clean: ## forget every build; the data directory stays
	rm -rf build build-asan build-clang build-fuzz

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

# What to install is looked up once per version of setup.sh, not each time.
build/.deps build/.deps-test: scripts/setup.sh
	@scripts/setup.sh build $(if $(filter %-test,$@),test)
	@mkdir -p build && touch $@

# Warnings are errors in the builds that tests use, not here: a newer compiler must not stop somebody who wants to run it.
build/build.ninja: | build/.deps
	$(call configure,build,,-Dtests=false -Dwerror=false)

build-asan/build.ninja: | build/.deps-test
	$(call configure,build-asan,,-Db_sanitize=address$(comma)undefined)

build-clang/build.ninja: | build/.deps-test
	$(call configure,build-clang,CC=clang)

build-fuzz/build.ninja: | build/.deps-test
	$(call configure,build-fuzz,CC=clang,-Dfuzz=true -Dtests=false -Db_sanitize=address$(comma)undefined -Db_lundef=false)
